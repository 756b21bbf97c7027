//! Live frames of running tasks: progress and previews, in memory only.
//!
//! Frames are best effort and bounded. What must not be missed is an event of the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use remuda_core::{AttemptNo, TaskId};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

/// How many frames a slow reader may be behind before it misses some.
const BACKLOG: usize = 64;

/// With more channels than this, those without a reader and without news are dropped when another comes.
const CHANNELS: usize = 256;

/// So long a frame is news.
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
        /// … of so many.
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

/// Hands frames of running tasks to whoever follows them in this process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct FrameHub {
    inner: Arc<Mutex<HashMap<TaskId, Channel>>>,
}

#[derive(Debug)]
struct Channel {
    sender: broadcast::Sender<Frame>,
    /// The last progress: a reader that comes late sees at once where the task is.
    last: Option<Frame>,
    /// When there was the last frame, or the first reader.
    at: Instant,
}

/// The channel of a task.
///
/// Before another is made, those that nobody will close are dropped: of tasks that were followed here and never ran here,
/// and of frames that came after their lease was lost.
fn channel(channels: &mut HashMap<TaskId, Channel>, task: TaskId, now: Instant) -> &mut Channel {
    if channels.len() >= CHANNELS && !channels.contains_key(&task) {
        channels.retain(|_, channel| {
            let news = channel.last.is_some() && now.saturating_duration_since(channel.at) < NEWS;
            news || channel.sender.receiver_count() > 0
        });
    }
    let new = || Channel { sender: broadcast::channel(BACKLOG).0, last: None, at: now };
    channels.entry(task).or_insert_with(new)
}

impl FrameHub {
    /// Passes a frame to the readers of its task.
    pub fn publish(&self, frame: Frame) {
        self.publish_at(frame, Instant::now());
    }

    fn publish_at(&self, frame: Frame, now: Instant) {
        let mut channels = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = channel(&mut channels, frame.task, now);
        channel.at = now;
        if matches!(frame.what, FrameKind::Progress { .. }) {
            channel.last = Some(frame.clone());
        }
        // Without a reader the frame is not wanted.
        drop(channel.sender.send(frame));
    }

    /// Whether there is progress of a task to be had here.
    pub fn has(&self, task: TaskId) -> bool {
        let channels = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        channels.get(&task).is_some_and(|channel| channel.last.is_some())
    }

    /// Follows a task: the last progress, if there is one, and all frames from now on.
    pub fn subscribe(&self, task: TaskId) -> (Option<Frame>, broadcast::Receiver<Frame>) {
        let mut channels = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = channel(&mut channels, task, Instant::now());
        (channel.last.clone(), channel.sender.subscribe())
    }

    /// The task does not run here any more: its readers see the end of the channel.
    pub fn close(&self, task: TaskId) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).remove(&task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_nobody_closes_do_not_pile_up() {
        let hub = FrameHub::default();
        let start = Instant::now();
        let publish = |task, at| {
            let what = FrameKind::Progress {
                fraction: 0.5,
                node: None,
                value: 1.0,
                max: 2.0,
                nodes_done: 0,
                nodes: 1,
            };
            hub.publish_at(Frame { task, attempt: 1, what }, at);
        };
        let tasks: Vec<TaskId> = (0..CHANNELS as u128).map(|n| TaskId(uuid::Uuid::from_u128(n))).collect();
        for task in &tasks {
            publish(*task, start);
        }
        let (_, _reader) = hub.subscribe(tasks[0]);
        publish(tasks[1], start + NEWS);
        let late = TaskId(uuid::Uuid::from_u128(1 << 64));
        publish(late, start + NEWS);
        let kept = hub.inner.lock().unwrap().len();
        assert_eq!(kept, 3, "the followed one, the one with news, and the new one");
        assert!(hub.has(tasks[0]) && hub.has(tasks[1]) && hub.has(late));
    }
}
