//! What ComfyUI says of one attempt: kept for who comes late, and handed to everybody who follows.
//!
//! A reader has a mailbox of its own, so that one who does not read costs a bounded amount of memory and holds up nobody.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use remuda_core::AttemptNo;
use tokio::sync::Notify;

use super::{Frame, FrameKind};

/// How many messages of an attempt are kept for those who come late …
const KEPT: usize = 1000;

/// … and how many bytes of them.
const KEPT_BYTES: usize = 4 << 20;

/// How many frames may wait for a reader …
const WAITING: usize = 4096;

/// … and how many bytes of them: results that are sent as pictures can be large.
const WAITING_BYTES: usize = 64 << 20;

/// How long what was said of an attempt is kept after its end.
pub(super) const LINGER: Duration = Duration::from_secs(10);

/// How much memory a frame takes.
pub(super) fn size(frame: &Frame) -> usize {
    let held = match &frame.what {
        FrameKind::Message { kind, data } => kind.len() + data.len(),
        FrameKind::Preview { bytes, .. } | FrameKind::Binary { bytes, .. } => bytes.len(),
        FrameKind::Progress { .. } => 0,
    };
    size_of::<Frame>() + held
}

/// News that the next of their kind make worthless: the first to go when a reader is slow.
fn fleeting(what: &FrameKind) -> bool {
    match what {
        FrameKind::Message { kind, .. } => kind == "progress" || kind == "progress_state",
        FrameKind::Binary { event, .. } => *event != 3,
        FrameKind::Progress { .. } | FrameKind::Preview { .. } => true,
    }
}

/// Frames on their way to one reader.
#[derive(Debug, Default)]
pub struct Mailbox {
    state: Mutex<Waiting>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Arc<Frame>>,
    bytes: usize,
    closed: bool,
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never waits. When the reader is too slow, fleeting news go first, the oldest of them, and then whatever is oldest.
    pub fn push(&self, frame: Arc<Frame>) {
        let mut state = self.state();
        state.bytes += size(&frame);
        state.frames.push_back(frame);
        while state.frames.len() > WAITING || (state.bytes > WAITING_BYTES && state.frames.len() > 1) {
            let newest = state.frames.len() - 1;
            let first = state.frames.iter().take(newest).position(|frame| fleeting(&frame.what)).unwrap_or(0);
            let Some(dropped) = state.frames.remove(first) else { break };
            state.bytes -= size(&dropped);
        }
        drop(state);
        self.news.notify_one();
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.news.notify_one();
    }

    /// The next frame, if it is there already.
    pub fn pop(&self) -> Option<Arc<Frame>> {
        let mut state = self.state();
        let frame = state.frames.pop_front()?;
        state.bytes -= size(&frame);
        Some(frame)
    }

    /// The next frame; `None` when there will be none. Only one may wait.
    pub async fn next(&self) -> Option<Arc<Frame>> {
        loop {
            if let Some(frame) = self.pop() {
                return Some(frame);
            }
            if self.state().closed {
                return None;
            }
            self.news.notified().await;
        }
    }
}

/// A reader of everything that ComfyUI says of an attempt: [`FrameKind::Message`] and [`FrameKind::Binary`].
#[derive(Debug)]
pub struct Messages {
    mailbox: Arc<Mailbox>,
}

impl Messages {
    /// The next one; `None` when the task does not run here any more. Can be left and called again.
    pub async fn recv(&mut self) -> Option<Arc<Frame>> {
        self.mailbox.next().await
    }

    /// The next one, if it is there already.
    pub fn try_recv(&mut self) -> Option<Arc<Frame>> {
        self.mailbox.pop()
    }
}

/// One who follows.
#[derive(Debug)]
struct Reader {
    mailbox: Weak<Mailbox>,
    /// Earlier attempts are of no interest.
    from: AttemptNo,
}

/// What was said of a task's newest attempt, and who follows.
#[derive(Debug)]
pub(super) struct Story {
    attempt: AttemptNo,
    log: VecDeque<Arc<Frame>>,
    pub(super) bytes: usize,
    readers: Vec<Reader>,
    /// When there was the last word, or the first reader.
    pub(super) at: Instant,
    /// When its end came.
    pub(super) closed: Option<Instant>,
}

impl Story {
    pub(super) fn new(now: Instant) -> Self {
        Self { attempt: 0, log: VecDeque::new(), bytes: 0, readers: Vec::new(), at: now, closed: None }
    }

    pub(super) fn is_followed(&self) -> bool {
        self.readers.iter().any(|reader| reader.mailbox.strong_count() > 0)
    }

    /// Whether something was said of this attempt, or of a later one.
    pub(super) fn tells_of(&self, attempt: AttemptNo) -> bool {
        self.attempt >= attempt && !self.log.is_empty()
    }

    pub(super) fn publish(&mut self, frame: Frame, now: Instant) {
        if frame.attempt < self.attempt {
            return;
        }
        if frame.attempt > self.attempt {
            self.attempt = frame.attempt;
            self.log.clear();
            self.bytes = 0;
        }
        self.at = now;
        self.closed = None;
        let frame = Arc::new(frame);
        self.keep(&frame);
        self.readers.retain(|reader| {
            let Some(mailbox) = reader.mailbox.upgrade() else { return false };
            if frame.attempt >= reader.from {
                mailbox.push(Arc::clone(&frame));
            }
            true
        });
    }

    /// Of what is said again and again only the last is kept, and no pictures.
    fn keep(&mut self, frame: &Arc<Frame>) {
        let FrameKind::Message { kind, .. } = &frame.what else { return };
        let same =
            |kept: &Arc<Frame>| matches!(&kept.what, FrameKind::Message { kind: known, .. } if known == kind);
        if fleeting(&frame.what)
            && let Some(before) = self.log.iter().rposition(same)
        {
            self.drop_kept(before);
        }
        self.bytes += size(frame);
        self.log.push_back(Arc::clone(frame));
        while self.log.len() > KEPT || self.bytes > KEPT_BYTES {
            self.drop_kept(0);
        }
    }

    fn drop_kept(&mut self, at: usize) {
        if let Some(dropped) = self.log.remove(at) {
            self.bytes -= size(&dropped);
        }
    }

    /// What was said so far, and from now on what is said: nothing twice, and nothing left out between.
    pub(super) fn follow(&mut self, from: AttemptNo) -> Messages {
        let mailbox = Arc::new(Mailbox::default());
        if self.attempt >= from {
            self.log.iter().for_each(|frame| mailbox.push(Arc::clone(frame)));
        }
        // What ended before begins again under a higher number, or when it is adopted.
        if self.closed.is_some() && self.tells_of(from) {
            mailbox.close();
        } else {
            self.readers.push(Reader { mailbox: Arc::downgrade(&mailbox), from });
        }
        Messages { mailbox }
    }

    pub(super) fn close(&mut self, now: Instant) {
        self.closed.get_or_insert(now);
        for reader in self.readers.drain(..) {
            if let Some(mailbox) = reader.mailbox.upgrade() {
                mailbox.close();
            }
        }
    }
}

impl Drop for Story {
    /// Nobody waits for what cannot come.
    fn drop(&mut self) {
        self.close(self.at);
    }
}
