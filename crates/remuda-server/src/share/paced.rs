//! Long answers out of many pieces, read from the store as the client takes them and counted while they are on their way.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{Stream, TryStreamExt as _, stream};

use super::guest::Guest;
use super::ledger::Refusal;
use super::room::{Pass, Room};

/// The most pieces that are read at once; a guest may not have more turns.
const MOST: usize = 2;

/// After pieces larger than this, one is read at a time.
const LARGE: usize = 64 << 10;

/// How long an answer waits for its turn, and for memory, before it is broken off.
const PATIENCE: Duration = Duration::from_secs(30);

/// A text that is counted while it is in memory.
#[derive(Debug)]
pub(crate) struct Charged {
    pub(crate) text: String,
    pass: Pass,
}

impl Charged {
    pub(crate) fn new(text: String, pass: Pass) -> Self {
        Self { text, pass }
    }

    /// The same bytes; they are counted until the last of them is gone.
    pub(crate) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        let _counted = &self.pass;
        self.text.as_bytes()
    }
}

struct Reading<T> {
    items: VecDeque<T>,
    at_once: usize,
}

/// The texts of items, in their order. One that is `None` is left out.
pub(crate) fn paced<T, R>(
    reads: Room,
    memory: Room,
    guest: Arc<Guest>,
    items: Vec<T>,
    read: impl Fn(T) -> R,
) -> impl Stream<Item = io::Result<Charged>>
where
    T: Clone,
    R: Future<Output = io::Result<Option<String>>>,
{
    let begin = Reading { items: items.into(), at_once: 1 };
    let read = Arc::new(read);
    let batches = stream::try_unfold(begin, move |mut reading| {
        let (reads, memory, guest, read) = (reads.clone(), memory.clone(), guest.clone(), read.clone());
        async move {
            let busy = |_| io::Error::other("there was no room for the rest of a long answer");
            let mut ahead = None;
            loop {
                let count = reading.at_once.min(reading.items.len());
                if count == 0 {
                    return Ok::<_, io::Error>(None);
                }
                // How large they are is known when they are there: only a few at once are in memory and not counted.
                let turn = reads.wait(&guest, count as u64, PATIENCE).await.map_err(busy)?;
                let texts = reading.items.iter().take(count).cloned().map(|item| read(item));
                let texts: Vec<String> = try_join_all(texts).await?.into_iter().flatten().collect();
                let size: usize = texts.iter().map(String::len).sum();
                let charged = charge(&memory, &guest, texts, ahead.take());
                // Never held while waiting for memory: a slow reader would keep the turn from everybody.
                drop(turn);
                match charged {
                    Ok(batch) => {
                        reading.items.drain(..count);
                        let large = batch.iter().any(|piece| piece.text.len() > LARGE);
                        reading.at_once = if large { 1 } else { (2 * reading.at_once).min(MOST) };
                        return Ok(Some((stream::iter(batch.into_iter().map(Ok)), reading)));
                    }
                    Err(_) if count > 1 => reading.at_once = 1,
                    // It is read again once there is room for it.
                    Err(_) => {
                        let pass = memory.wait(&guest, size as u64, PATIENCE).await.map_err(busy)?;
                        ahead = Some(pass);
                    }
                }
            }
        }
    });
    batches.try_flatten()
}

/// Counts texts, the first with what was taken ahead for it. If there is no memory for all of them, they are dropped.
fn charge(
    memory: &Room,
    guest: &Arc<Guest>,
    texts: Vec<String>,
    mut ahead: Option<Pass>,
) -> Result<Vec<Charged>, Refusal> {
    let charged = texts.into_iter().map(|text| {
        let size = text.len() as u64;
        let pass = match ahead.take() {
            Some(mut pass) => pass.cover(size).map(|()| pass)?,
            None => memory.take(guest, size)?,
        };
        Ok(Charged { text, pass })
    });
    charged.collect()
}

#[cfg(test)]
mod tests {
    use remuda_core::Tenant;

    use super::*;

    fn guest(tenant: &str) -> Arc<Guest> {
        Arc::new(Guest { tenant: Some(Tenant::new(tenant).unwrap()), address: None })
    }

    #[tokio::test]
    async fn who_waits_for_memory_keeps_no_turn_from_others() {
        let (reads, memory) = (Room::new(1), Room::new(100));
        let full = memory.take(&guest("full"), 95).unwrap();
        let read = |size: usize| async move { Ok(Some("x".repeat(size))) };
        let slow = paced(reads.clone(), memory.clone(), guest("slow"), vec![20, 3], read);
        let mut slow = std::pin::pin!(slow);
        let waits = tokio::time::timeout(Duration::from_millis(50), slow.try_next()).await;
        assert!(waits.is_err(), "there is no memory for it");
        let others: Vec<Charged> =
            paced(reads, memory, guest("other"), vec![1, 2], read).try_collect().await.unwrap();
        assert_eq!(others.len(), 2);
        drop((full, others));
        let first = slow.try_next().await.unwrap().unwrap();
        assert_eq!(first.text.len(), 20);
        assert_eq!(slow.try_next().await.unwrap().unwrap().text.len(), 3);
        assert!(slow.try_next().await.unwrap().is_none());
    }
}
