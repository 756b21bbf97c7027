//! The feed: what happened to the tasks of a tenant, in the order in which it was committed.
//!
//! Both stores write it in the transaction that made it happen, all of one commit and one tenant packed into one row. PostgreSQL packs
//! it, too, for an older release, so the order of the bytes is that of the network.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{EventKind, TaskEvent, TaskId, Version};

/// What a packed entry takes.
const PACKED: usize = 16 + 8 + 8 + 1;

/// The first byte of every pack: how it is packed.
const FORMAT: u8 = 1;

/// One thing that happened to one task. What else there is to know of it is among the events of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedEntry {
    /// To which task.
    pub task: TaskId,
    /// The number of the event, and with it the task's version after it.
    pub n: Version,
    /// What.
    pub kind: EventKind,
    /// When.
    pub at: Timestamp,
}

impl From<&TaskEvent> for FeedEntry {
    fn from(event: &TaskEvent) -> Self {
        Self { task: event.task, n: event.n, kind: event.kind, at: event.at }
    }
}

/// What one commit did to the tasks of one tenant, as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPack(Vec<u8>);

impl Default for FeedPack {
    fn default() -> Self {
        Self(vec![FORMAT])
    }
}

/// Bytes that are no pack, or one of a later release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an entry of the feed cannot be read")]
pub struct BadPack;

impl FeedPack {
    /// How many bytes an entry takes. A pack has one more: as many entries are in it as fit into its length.
    pub const ENTRY: usize = PACKED;

    /// One more entry, the last of them.
    pub fn push(&mut self, entry: FeedEntry) {
        self.0.extend_from_slice(entry.task.0.as_bytes());
        self.0.extend_from_slice(&entry.n.to_be_bytes());
        self.0.extend_from_slice(&entry.at.as_microsecond().to_be_bytes());
        self.0.push(entry.kind.code());
    }

    /// As they are stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The entries of stored bytes, in their order.
    ///
    /// ```
    /// use remuda_core::{EventKind, FeedEntry, FeedPack, TaskId, Timestamp};
    /// let entry = FeedEntry { task: TaskId::new(), n: 1, kind: EventKind::Submitted, at: Timestamp::UNIX_EPOCH };
    /// let mut pack = FeedPack::default();
    /// pack.push(entry);
    /// assert_eq!(FeedPack::read(pack.as_bytes()), Ok(vec![entry]));
    /// ```
    pub fn read(bytes: &[u8]) -> Result<Vec<FeedEntry>, BadPack> {
        let (format, entries) = bytes.split_first().ok_or(BadPack)?;
        let entries = entries.chunks_exact(PACKED);
        if *format != FORMAT || !entries.remainder().is_empty() {
            return Err(BadPack);
        }
        entries.map(|bytes| read_one(bytes).ok_or(BadPack)).collect()
    }
}

fn read_one(bytes: &[u8]) -> Option<FeedEntry> {
    let (task, rest) = bytes.split_first_chunk::<16>()?;
    let (n, rest) = rest.split_first_chunk::<8>()?;
    let (at, rest) = rest.split_first_chunk::<8>()?;
    Some(FeedEntry {
        task: TaskId(Uuid::from_bytes(*task)),
        n: Version::from_be_bytes(*n),
        kind: EventKind::from_code(*rest.first()?)?,
        at: Timestamp::from_microsecond(i64::from_be_bytes(*at)).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_read_and_nothing_else() {
        let mut pack = FeedPack::default();
        assert_eq!(FeedPack::read(pack.as_bytes()), Ok(Vec::new()));
        let entries: Vec<FeedEntry> = (0..=255)
            .filter_map(EventKind::from_code)
            .zip(1..)
            .map(|(kind, n)| FeedEntry {
                task: TaskId::new(),
                n,
                kind,
                at: Timestamp::from_microsecond(n * 1_000_003).unwrap(),
            })
            .collect();
        assert_eq!(entries.len(), 10, "every kind has a code, and no two the same");
        entries.iter().for_each(|entry| pack.push(*entry));
        assert_eq!(FeedPack::read(pack.as_bytes()), Ok(entries));
        let bytes = pack.as_bytes();
        assert_eq!(FeedPack::read(&bytes[..bytes.len() - 1]), Err(BadPack));
        assert_eq!(FeedPack::read(&[]), Err(BadPack));
        assert_eq!(FeedPack::read(&[FORMAT + 1]), Err(BadPack));
    }
}
