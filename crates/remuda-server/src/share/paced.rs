//! Long answers out of many pieces, read from the store as the client takes them and counted while they are on their way.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use std::vec;

use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{Stream, TryStreamExt as _, stream};

use super::guest::Guest;
use super::room::{Pass, Room};

/// The most pieces that are read at once.
const MOST: usize = 4;

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
    items: vec::IntoIter<T>,
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
    R: Future<Output = io::Result<Option<String>>>,
{
    let begin = Reading { items: items.into_iter(), at_once: 1 };
    let read = Arc::new(read);
    let batches = stream::try_unfold(begin, move |mut reading| {
        let (reads, memory, guest, read) = (reads.clone(), memory.clone(), guest.clone(), read.clone());
        async move {
            let items: Vec<T> = reading.items.by_ref().take(reading.at_once).collect();
            if items.is_empty() {
                return Ok::<_, io::Error>(None);
            }
            let busy = |_| io::Error::other("there was no room for the rest of a long answer");
            // How large they are is known when they are there: only a few at once are in memory and not counted.
            let turn = reads.wait(&guest, items.len() as u64, PATIENCE).await.map_err(busy)?;
            let texts = try_join_all(items.into_iter().map(|item| read(item))).await?;
            let mut batch = Vec::with_capacity(texts.len());
            for text in texts.into_iter().flatten() {
                let pass = memory.wait(&guest, text.len() as u64, PATIENCE).await.map_err(busy)?;
                batch.push(Charged { text, pass });
            }
            drop(turn);
            let large = batch.iter().any(|piece| piece.text.len() > LARGE);
            reading.at_once = if large { 1 } else { (2 * reading.at_once).min(MOST) };
            Ok(Some((stream::iter(batch.into_iter().map(Ok)), reading)))
        }
    });
    batches.try_flatten()
}
