//! How much one ComfyUI may send.
//!
//! A ComfyUI runs other people's code. Its answers are read as they come, counted after decompression, and dropped
//! as soon as they pass their bound.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

/// Bodies beyond this size are read a few at a time in the whole process: many servers that send as much as they may
/// must not add up.
const LARGE: usize = 8 << 20;

/// How many bodies beyond [`LARGE`] are read at once.
static LARGE_AT_ONCE: Semaphore = Semaphore::const_new(3);

/// How much of the body of an error answer is read.
pub(crate) const ERROR_BODY: u64 = 64 << 10;

/// How much is read of the answer to a request that the server refuses: it repeats the values that it does not like.
pub(crate) const REFUSAL_BODY: u64 = 4 << 20;

/// How many JSON values such an answer may hold to be read.
pub(crate) const REFUSAL_VALUES: usize = 100_000;

/// How many JSON values one answer may hold where all of it is turned into values. A value takes up to a hundred bytes
/// of memory and can be two bytes of text.
pub(crate) const VALUES: usize = 1_000_000;

/// Bounds on what a server may send. A normal server is far below all of them.
///
/// ```
/// use comfyui::{Client, Limits};
///
/// let limits = Limits { file: 100 << 20, ..Limits::default() };
/// let client = Client::builder("http://127.0.0.1:8188").limits(limits).build()?;
/// # let _ = client;
/// # Ok::<(), comfyui::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of an answer that has no bound of its own below. Default 16 MiB.
    pub answer: u64,
    /// Bytes of `/object_info`. A server with thousands of nodes has some ten megabytes. Default 32 MiB.
    pub object_info: u64,
    /// Bytes of `/history` and `/queue`, which repeat the workflows that were sent, in ASCII. Default 96 MiB.
    pub history: u64,
    /// Bytes of one file from `/view`. Default 16 GiB.
    pub file: u64,
    /// Bytes of one message of the websocket. Pictures are sent as one message. Default 64 MiB.
    pub frame: usize,
    /// Messages of the websocket per second, pings included, over a longer time; ten times as many may come at once. A
    /// server that sends more is read more slowly. Default 2,000.
    pub frames_per_second: u32,
    /// Bytes per second that a file must come in on average, after the client's timeout. Default 4 KiB.
    pub slowest: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            answer: 16 << 20,
            object_info: 32 << 20,
            history: 96 << 20,
            file: 16 << 30,
            frame: 64 << 20,
            frames_per_second: 2_000,
            slowest: 4 << 10,
        }
    }
}

/// Which bound an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// [`Limits::answer`].
    Plain,
    /// [`Limits::object_info`].
    ObjectInfo,
    /// [`Limits::history`]. Workflows in it stay text, so only the upper levels are counted as values.
    History,
}

impl Route {
    pub(crate) fn bytes(self, limits: &Limits) -> u64 {
        match self {
            Self::Plain => limits.answer,
            Self::ObjectInfo => limits.object_info,
            Self::History => limits.history,
        }
    }

    /// Down to which level members are turned into values.
    pub(crate) fn depth(self) -> usize {
        match self {
            Self::Plain | Self::ObjectInfo => usize::MAX,
            Self::History => 3,
        }
    }
}

/// A body that was read whole. While it is held, a large one keeps others waiting.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) bytes: Bytes,
    _turn: Option<Turn>,
}

/// The right to read one large body.
#[derive(Debug)]
struct Turn {
    /// Gone first: whoever comes next from the same server must not find all others still taken.
    _all: Option<SemaphorePermit<'static>>,
    _own: Option<OwnedSemaphorePermit>,
}

/// Whose turn it is among the large bodies of one server: one at a time, so that a server that sends slowly holds up nobody
/// but itself and one of the places that all share.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    own: Arc<Semaphore>,
    waited: Arc<Mutex<Waited>>,
}

#[derive(Debug, Default)]
struct Waited {
    before: Duration,
    since: Option<Instant>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { own: Arc::new(Semaphore::new(1)), waited: Arc::default() }
    }
}

impl Turns {
    /// The same turns, with a count of their own of the time that is spent waiting.
    pub(crate) fn counted_anew(&self) -> Self {
        Self { own: Arc::clone(&self.own), waited: Arc::default() }
    }

    /// For how long a turn was waited for, until now. That is nobody's fault.
    pub(crate) fn waited(&self) -> Duration {
        let waited = self.lock();
        waited.before + waited.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, Waited> {
        self.waited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take(&self) -> Turn {
        self.lock().since.get_or_insert_with(Instant::now);
        let _counted = Counted(self);
        // They are never closed.
        let own = Arc::clone(&self.own).acquire_owned().await.ok();
        Turn { _all: LARGE_AT_ONCE.acquire().await.ok(), _own: own }
    }
}

/// Ends the wait, also when nobody waits for the body any more.
struct Counted<'a>(&'a Turns);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let mut waited = self.0.lock();
        if let Some(since) = waited.since.take() {
            waited.before += since.elapsed();
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes: bytes.into(), _turn: None }
    }
}

/// Why a body could not be read whole.
#[derive(Debug)]
pub(crate) enum Unread {
    TooLarge,
    TooSlow,
    Broke(reqwest::Error),
}

/// Reads a body of at most `limit` bytes, counted after decompression. What it has to wait for others is added to its time.
pub(crate) async fn body(
    response: &mut reqwest::Response,
    limit: u64,
    turns: &Turns,
    mut until: Instant,
) -> Result<Body, Unread> {
    // An honest server is refused before its body is sent. The length is absent where the body is compressed.
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(Unread::TooLarge);
    }
    let mut turn = None;
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    loop {
        let chunk = timeout_at(until, response.chunk()).await.map_err(|_| Unread::TooSlow)?;
        let Some(chunk) = chunk.map_err(Unread::Broke)? else { break };
        if (first.len() + all.len() + chunk.len()) as u64 > limit {
            return Err(Unread::TooLarge);
        }
        if first.is_empty() && all.is_empty() {
            // Most answers are one chunk, which need not be copied.
            first = chunk;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        if turn.is_none() && all.len() + chunk.len() > LARGE {
            let since = Instant::now();
            turn = Some(turns.take().await);
            until += since.elapsed();
        }
        all.extend_from_slice(&chunk);
    }
    let bytes = if all.is_empty() { first } else { all.freeze() };
    Ok(Body { bytes, _turn: turn })
}

/// The beginning of a body, at most this many bytes, whatever comes after it.
pub(crate) async fn beginning(response: &mut reqwest::Response, most: u64) -> Vec<u8> {
    let mut all = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = usize::try_from(most).unwrap_or(usize::MAX) - all.len();
        all.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() >= room {
            break;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_server_has_one_turn_and_waiting_for_it_is_counted() {
        let turns = Turns::default();
        let first = turns.take().await;
        let mine = turns.counted_anew();
        let waiting = tokio::spawn({
            let mine = mine.clone();
            async move { mine.take().await }
        });
        let since = Instant::now();
        while mine.waited() < Duration::from_millis(20) {
            assert!(since.elapsed() < Duration::from_secs(60), "it is counted while it goes on");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(!waiting.is_finished());
        // Another server is not held up.
        drop(Turns::default().take().await);
        drop(first);
        let second = waiting.await.unwrap();
        let waited = mine.waited();
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(mine.waited(), waited, "it is over");
        drop(second);
    }
}
