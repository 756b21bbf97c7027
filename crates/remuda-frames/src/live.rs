//! Progress and previews of one task on their way to whoever follows it.
//!
//! A slow reader is behind by a bounded number of frames. Of previews only the newest is kept, once for all readers of its
//! task, and all that are kept in the process together have a bounded size.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{Notify, OnceCell};

use super::{Frame, FrameKind};

/// How many frames a slow reader may be behind before it misses some.
const BACKLOG: usize = 64;

/// How many bytes of previews of all tasks are kept for readers. The oldest go first.
pub(super) const PREVIEWS: usize = 32 << 20;

/// A frame that several read. What they send of it is written once.
#[derive(Debug)]
pub struct LiveFrame {
    frame: Frame,
    written: OnceCell<Bytes>,
}

impl Deref for LiveFrame {
    type Target = Frame;

    fn deref(&self) -> &Frame {
        &self.frame
    }
}

impl LiveFrame {
    pub(super) fn new(frame: Frame) -> Arc<Self> {
        Arc::new(Self { frame, written: OnceCell::new() })
    }

    /// The frame as its readers send it. Whoever comes first writes it, and the others wait for that.
    pub async fn written<E>(&self, write: impl AsyncFnOnce(&Frame) -> Result<Bytes, E>) -> Result<Bytes, E> {
        self.written.get_or_try_init(|| write(&self.frame)).await.cloned()
    }

    /// The same for what is written in no time.
    pub async fn written_here(&self, write: impl FnOnce(&Frame) -> Bytes) -> Bytes {
        let Ok(written) = self.written(async |frame: &Frame| Ok::<_, Infallible>(write(frame))).await;
        written
    }
}

/// The newest previews of all tasks.
#[derive(Debug, Default)]
pub(super) struct Gallery(Mutex<Hung>);

#[derive(Debug, Default)]
struct Hung {
    previews: BTreeMap<u64, Arc<LiveFrame>>,
    bytes: usize,
    last: u64,
}

impl Hung {
    fn remove(&mut self, n: u64) {
        if let Some(gone) = self.previews.remove(&n) {
            self.bytes -= size(&gone);
        }
    }
}

fn size(frame: &Frame) -> usize {
    super::messages::size(frame)
}

impl Gallery {
    fn hung(&self) -> MutexGuard<'_, Hung> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hang(self: &Arc<Self>, preview: Arc<LiveFrame>) -> Place {
        let mut hung = self.hung();
        hung.last += 1;
        let n = hung.last;
        hung.bytes += size(&preview);
        hung.previews.insert(n, preview);
        while hung.bytes > PREVIEWS
            && let Some(oldest) = hung.previews.keys().next().copied()
        {
            hung.remove(oldest);
        }
        drop(hung);
        Place { gallery: Arc::clone(self), n }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.hung().bytes
    }
}

/// Where a preview hangs, until dropped.
#[derive(Debug)]
struct Place {
    gallery: Arc<Gallery>,
    n: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gallery.hung().remove(self.n);
    }
}

/// Frames on their way to one reader.
#[derive(Debug, Default)]
struct Inbox {
    state: Mutex<Waiting>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Item>,
    closed: bool,
}

#[derive(Debug)]
enum Item {
    Progress(Arc<LiveFrame>),
    /// It may be gone when its turn comes.
    Preview(Weak<LiveFrame>),
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never waits.
    fn push(&self, frame: &Arc<LiveFrame>) {
        let mut state = self.state();
        let preview = matches!(frame.what, FrameKind::Preview { .. });
        if preview && let Some(older) = state.frames.iter().position(|item| matches!(item, Item::Preview(_)))
        {
            state.frames.remove(older);
        }
        while state.frames.len() >= BACKLOG {
            state.frames.pop_front();
        }
        let item =
            if preview { Item::Preview(Arc::downgrade(frame)) } else { Item::Progress(Arc::clone(frame)) };
        state.frames.push_back(item);
        drop(state);
        self.news.notify_one();
    }

    fn close(&self) {
        self.state().closed = true;
        self.news.notify_one();
    }
}

/// A reader of a task's progress and previews.
#[derive(Debug)]
pub struct LiveFrames {
    inbox: Arc<Inbox>,
}

impl LiveFrames {
    /// Waits until there may be a frame. Whether there can be any: `false` after the last. Can be left and called again.
    pub async fn ready(&mut self) -> bool {
        loop {
            {
                let state = self.inbox.state();
                if !state.frames.is_empty() {
                    return true;
                }
                if state.closed {
                    return false;
                }
            }
            self.inbox.news.notified().await;
        }
    }

    /// The next one, if it is there already.
    pub fn try_recv(&mut self) -> Option<Arc<LiveFrame>> {
        let mut state = self.inbox.state();
        while let Some(item) = state.frames.pop_front() {
            match item {
                Item::Progress(frame) => return Some(frame),
                Item::Preview(frame) => {
                    if let Some(frame) = frame.upgrade() {
                        return Some(frame);
                    }
                }
            }
        }
        None
    }

    /// The next one; `None` when the task does not run here any more. Can be left and called again.
    pub async fn recv(&mut self) -> Option<Arc<LiveFrame>> {
        while self.ready().await {
            if let Some(frame) = self.try_recv() {
                return Some(frame);
            }
        }
        None
    }
}

/// Progress and previews of one task.
#[derive(Debug)]
pub(super) struct Channel {
    readers: Vec<Weak<Inbox>>,
    /// The last progress: a reader that comes late sees at once where the task is.
    pub(super) last: Option<Arc<LiveFrame>>,
    /// The newest preview, for those who have not read it.
    preview: Option<Place>,
    gallery: Arc<Gallery>,
    /// When there was the last frame, or the first reader.
    pub(super) at: Instant,
}

impl Channel {
    pub(super) fn new(gallery: Arc<Gallery>, now: Instant) -> Self {
        Self { readers: Vec::new(), last: None, preview: None, gallery, at: now }
    }

    pub(super) fn is_followed(&self) -> bool {
        self.readers.iter().any(|reader| reader.strong_count() > 0)
    }

    pub(super) fn publish(&mut self, frame: Frame, now: Instant) {
        self.at = now;
        self.readers.retain(|reader| reader.strong_count() > 0);
        let preview = matches!(frame.what, FrameKind::Preview { .. });
        if preview {
            self.preview = None;
            // Without a reader it is not wanted.
            if self.readers.is_empty() {
                return;
            }
        }
        let frame = LiveFrame::new(frame);
        if preview {
            self.preview = Some(self.gallery.hang(Arc::clone(&frame)));
        } else {
            self.last = Some(Arc::clone(&frame));
        }
        for reader in self.readers.iter().filter_map(Weak::upgrade) {
            reader.push(&frame);
        }
    }

    pub(super) fn follow(&mut self) -> LiveFrames {
        let inbox = Arc::new(Inbox::default());
        self.readers.retain(|reader| reader.strong_count() > 0);
        self.readers.push(Arc::downgrade(&inbox));
        LiveFrames { inbox }
    }
}

impl Drop for Channel {
    /// Nobody waits for what cannot come.
    fn drop(&mut self) {
        self.readers.iter().filter_map(Weak::upgrade).for_each(|reader| reader.close());
    }
}
