//! The mark that every prompt of ours carries, by which it is known again in a ComfyUI's queue and history.

use comfyui::QueueItem;
use remuda_core::{AttemptNo, Lease, TaskId, WorkerId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// Where it stands in `extra_data`.
pub(crate) const KEY: &str = "remuda";

/// `extra_data.remuda`.
///
/// The fence says who sent it, not who holds it now: after an adoption the prompt keeps the mark of its first owner.
/// So a prompt belongs to a lease when task and attempt are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marker {
    pub(crate) installation: Uuid,
    pub(crate) task: TaskId,
    pub(crate) attempt: AttemptNo,
    pub(crate) fence: i64,
    /// Under which name the worker was driven. A second name for the same ComfyUI must not sweep its prompts away.
    #[serde(default)]
    pub(crate) worker: Option<WorkerId>,
}

impl Marker {
    pub(crate) fn of(lease: &Lease, installation: Uuid) -> Self {
        Self {
            installation,
            task: lease.task,
            attempt: lease.attempt,
            fence: lease.fence.0,
            worker: Some(lease.worker.clone()),
        }
    }

    /// The mark of a prompt in a queue or history, if it has one.
    pub(crate) fn on(item: &QueueItem) -> Option<Self> {
        serde_json::from_value(item.extra(KEY)?).ok()
    }

    pub(crate) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Whether both mean the same attempt of the same task, whoever holds it.
    pub(crate) fn same_attempt(&self, other: &Self) -> bool {
        self.installation == other.installation && self.task == other.task && self.attempt == other.attempt
    }

    /// Whether the prompt is one that the holder of `worker` may have to stop.
    pub(crate) fn is_of(&self, installation: Uuid, worker: &WorkerId) -> bool {
        self.installation == installation && self.worker.as_ref().is_none_or(|name| name == worker)
    }
}
