//! Live frames of running tasks: progress, previews and ComfyUI's own messages, in memory only.
//!
//! Frames are best effort and bounded. What must not be missed is an event of the store.

mod live;
mod messages;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use remuda_core::{AttemptNo, TaskId};
use serde::{Deserialize, Serialize};

use live::{Channel, Gallery};
pub use live::{LiveFrame, LiveFrames};
use messages::{LINGER, Story};
pub use messages::{Mailbox, Messages};

/// With more channels than this, those without a reader and without news are dropped when another comes.
const CHANNELS: usize = 256;

/// How long a frame is news.
const NEWS: Duration = Duration::from_secs(900);

/// One live frame of one task.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Whose.
    pub task: TaskId,
    /// Of which attempt.
    pub attempt: AttemptNo,
    /// What it shows.
    pub what: FrameKind,
}

impl AsRef<Frame> for Frame {
    fn as_ref(&self) -> &Frame {
        self
    }
}

/// What a frame shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FrameKind {
    /// How far the task is.
    Progress {
        /// Of the whole, 0 to 1.
        fraction: f64,
        /// The node at work.
        node: Option<String>,
        /// Its step …
        value: f64,
        /// … of this many.
        max: f64,
        /// Nodes done, of all.
        nodes_done: u32,
        /// All nodes of the graph.
        nodes: u32,
    },
    /// A picture of the work in progress.
    Preview {
        /// Media type.
        mime: String,
        /// The picture.
        #[serde(skip)]
        bytes: Bytes,
    },
    /// A text message of ComfyUI's websocket, for clients that speak ComfyUI themselves. Only of tasks that came through
    /// its dialect. The prompt id in it is the attempt's.
    Message {
        /// Its type.
        kind: String,
        /// Its data, as JSON.
        data: String,
    },
    /// A binary message of ComfyUI's websocket, for the same clients.
    Binary {
        /// The number of the event: 1 and 4 are pictures, 3 is text.
        event: u32,
        /// What follows the number.
        #[serde(skip)]
        bytes: Bytes,
    },
}

/// How many bytes of what was said of ended attempts are kept for those who come late; the oldest go first.
const LINGERING: usize = 64 << 20;

/// Hands frames of running tasks to whoever follows them in this process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct FrameHub {
    inner: Arc<Mutex<Inner>>,
    /// The newest previews; hubs beside each other have one together.
    gallery: Arc<Gallery>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Progress and previews.
    channels: HashMap<TaskId, Channel>,
    /// Messages, as ComfyUI sent them.
    stories: HashMap<TaskId, Story>,
}

impl Inner {
    /// The channel of a task.
    ///
    /// Before another is made, those that nobody will close are dropped: of tasks that were followed here and never ran
    /// here, and of frames that came after their lease was lost.
    fn channel(&mut self, task: TaskId, gallery: &Arc<Gallery>, now: Instant) -> &mut Channel {
        if self.channels.len() >= CHANNELS && !self.channels.contains_key(&task) {
            self.channels.retain(|_, channel| {
                let news = channel.last.is_some() && now.saturating_duration_since(channel.at) < NEWS;
                news || channel.is_followed()
            });
        }
        self.channels.entry(task).or_insert_with(|| Channel::new(Arc::clone(gallery), now))
    }

    /// What is said of a task. Before another is made, old ones are dropped, by the same rule.
    fn story(&mut self, task: TaskId, now: Instant) -> &mut Story {
        if !self.stories.contains_key(&task) {
            self.forget(now);
        }
        self.stories.entry(task).or_insert_with(|| Story::new(now))
    }

    fn forget(&mut self, now: Instant) {
        let many = self.stories.len() >= CHANNELS;
        self.stories.retain(|_, story| match story.closed {
            Some(closed) => now.saturating_duration_since(closed) < LINGER,
            None => !many || story.is_followed() || now.saturating_duration_since(story.at) < NEWS,
        });
        let closed = |(task, story): (&TaskId, &Story)| Some((story.closed?, story.bytes, *task));
        let mut ended: Vec<_> = self.stories.iter().filter_map(closed).collect();
        ended.sort_unstable();
        let (mut count, mut bytes) = (0, 0);
        for (_, size, task) in ended.into_iter().rev() {
            (count, bytes) = (count + 1, bytes + size);
            if count > CHANNELS || bytes > LINGERING {
                self.stories.remove(&task);
            }
        }
    }

    fn close(&mut self, task: TaskId, now: Instant) {
        self.channels.remove(&task);
        if let Some(story) = self.stories.get_mut(&task) {
            story.close(now);
            self.forget(now);
        }
    }
}

impl FrameHub {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A hub of its own, whose previews are counted together with this one's.
    pub fn beside(&self) -> Self {
        Self { inner: Arc::default(), gallery: Arc::clone(&self.gallery) }
    }

    /// Passes a frame to the readers of its task.
    pub fn publish(&self, frame: Frame) {
        self.publish_at(frame, Instant::now());
    }

    fn publish_at(&self, frame: Frame, now: Instant) {
        let mut inner = self.inner();
        if matches!(frame.what, FrameKind::Message { .. } | FrameKind::Binary { .. }) {
            return inner.story(frame.task, now).publish(frame, now);
        }
        inner.channel(frame.task, &self.gallery, now).publish(frame, now);
    }

    /// Whether there is progress of a task to be had here.
    pub fn has(&self, task: TaskId) -> bool {
        self.inner().channels.get(&task).is_some_and(|channel| channel.last.is_some())
    }

    /// Whether there are messages of this attempt, or of a later one, to be had here.
    pub fn has_messages(&self, task: TaskId, attempt: AttemptNo) -> bool {
        self.inner().stories.get(&task).is_some_and(|story| story.tells_of(attempt))
    }

    /// Follows a task: the last progress, if there is one, and all progress and previews from now on.
    ///
    /// Whoever is slow misses the oldest, and of previews all but the newest.
    pub fn subscribe(&self, task: TaskId) -> (Option<Arc<LiveFrame>>, LiveFrames) {
        let mut inner = self.inner();
        let channel = inner.channel(task, &self.gallery, Instant::now());
        (channel.last.clone(), channel.follow())
    }

    /// Follows what ComfyUI says of a task, in this attempt and later ones: first what it said of the newest one so far,
    /// of `progress` and `progress_state` only the last and no pictures, and then everything as it comes.
    ///
    /// What was said is kept for ten seconds after the task ceased to run here: who comes then reads it, and the end.
    pub fn follow_messages(&self, task: TaskId, attempt: AttemptNo) -> Messages {
        self.follow_messages_at(task, attempt, Instant::now())
    }

    fn follow_messages_at(&self, task: TaskId, attempt: AttemptNo, now: Instant) -> Messages {
        let mut inner = self.inner();
        inner.forget(now);
        inner.story(task, now).follow(attempt)
    }

    /// Whether anybody follows the task here.
    pub fn is_followed(&self, task: TaskId) -> bool {
        let inner = self.inner();
        inner.channels.get(&task).is_some_and(Channel::is_followed)
            || inner.stories.get(&task).is_some_and(Story::is_followed)
    }

    /// The task does not run here any more: its readers see the end of the channel.
    pub fn close(&self, task: TaskId) {
        self.close_at(task, Instant::now());
    }

    fn close_at(&self, task: TaskId, now: Instant) {
        self.inner().close(task, now);
    }

    /// Nothing was heard of the task for long: readers of its progress look for it again. Who follows its messages knows
    /// from the store whether it ended; a render can be silent for long.
    pub fn let_go(&self, task: TaskId) {
        let mut inner = self.inner();
        inner.channels.remove(&task);
        if inner.stories.get(&task).is_some_and(|story| !story.is_followed()) {
            inner.stories.remove(&task);
        }
    }
}
