//! Live frames of running tasks: progress and previews, in memory only.
//!
//! Frames are best effort and bounded. What must not be missed is an event of the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use remuda_core::{AttemptNo, TaskId};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

/// How many frames a slow reader may be behind before it misses some.
const BACKLOG: usize = 64;

/// With more channels than this, those without a reader and without news are dropped when another reader comes.
const CHANNELS: usize = 256;

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
}

impl FrameHub {
    /// Passes a frame to the readers of its task.
    pub fn publish(&self, frame: Frame) {
        let mut channels = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = channels
            .entry(frame.task)
            .or_insert_with(|| Channel { sender: broadcast::channel(BACKLOG).0, last: None });
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
        if channels.len() > CHANNELS {
            // A task that was followed here and never ran here is closed by nobody.
            channels.retain(|_, channel| channel.last.is_some() || channel.sender.receiver_count() > 0);
        }
        let channel = channels
            .entry(task)
            .or_insert_with(|| Channel { sender: broadcast::channel(BACKLOG).0, last: None });
        (channel.last.clone(), channel.sender.subscribe())
    }

    /// The task does not run here any more: its readers see the end of the channel.
    pub fn close(&self, task: TaskId) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).remove(&task);
    }
}
