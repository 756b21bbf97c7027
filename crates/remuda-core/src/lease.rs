//! The right to work on a task, for a while.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{AttemptNo, Fence, OwnerId, Task, TaskId, TaskInput, Timestamp, WorkerId};

/// How far a running task is. A note on the lease, not a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Inputs go to the worker; nothing was sent to ComfyUI's queue yet.
    #[default]
    Placing,
    /// In ComfyUI's queue, or on its way there, behind another prompt of ours.
    Ahead,
    /// In ComfyUI's queue, or on its way there.
    Submitted,
    /// ComfyUI works on it.
    Rendering,
    /// It is done, and its files are on their way to the file store.
    Collecting,
}

impl Phase {
    /// The name used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Placing => "placing",
            Self::Ahead => "ahead",
            Self::Submitted => "submitted",
            Self::Rendering => "rendering",
            Self::Collecting => "collecting",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Placing, Self::Ahead, Self::Submitted, Self::Rendering, Self::Collecting]
            .into_iter()
            .find(|phase| phase.as_str() == text)
            .ok_or_else(|| format!("unknown phase {text:?}"))
    }
}

/// How much of a task is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Of the whole, 0 to 1.
    pub fraction: f64,
}

/// Names one lease: every write of a runner carries it, and with an old fence it changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseRef {
    /// Which task.
    pub task: TaskId,
    /// Under which owner's number.
    pub fence: Fence,
}

/// The right of one owner to work on one task, until it is not renewed any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Which task.
    pub task: TaskId,
    /// The number of this owner.
    pub fence: Fence,
    /// The attempt under way.
    pub attempt: AttemptNo,
    /// Who holds it.
    pub owner: OwnerId,
    /// Where the task runs.
    pub worker: WorkerId,
    /// The id of the prompt at ComfyUI.
    pub prompt_id: Uuid,
    /// When others may take it over, unless it is renewed.
    pub until: Timestamp,
    /// How far it is.
    pub phase: Phase,
    /// How much is done, 0 to 1.
    pub progress: f64,
    /// When ComfyUI began to work on it.
    pub rendering_since: Option<Timestamp>,
    /// Where live frames of it can be had: the base URL of a gateway.
    pub gateway: Option<String>,
    /// An idle worker could start it sooner than the one in whose queue it waits: give it back.
    pub wanted: bool,
}

impl Lease {
    /// Its name.
    pub fn reference(&self) -> LeaseRef {
        LeaseRef { task: self.task, fence: self.fence }
    }
}

/// What a runner gets: a task with its input and a lease on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The task as it is now.
    pub task: Task,
    /// What to run.
    pub input: TaskInput,
    /// The right to run it. Its prompt id is durable: it may be sent.
    pub lease: Lease,
    /// Whether the attempt was under way before: look at ComfyUI before sending anything.
    pub adopted: bool,
}
