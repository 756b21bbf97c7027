//! What the journal keeps of a task: enough for another process to find its render, or to say how it ended.

use std::sync::Arc;

use remuda_core::{AttemptNo, Phase, TaskId, Timestamp, WorkerId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Delivery, DeliveryEnding};

/// The shape of a file. One of another shape is set aside.
pub(super) const VERSION: u32 = 1;

/// One file of the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) version: u32,
    /// Which queue it came from. Files have the names of the first version.
    #[serde(rename = "employer")]
    pub(super) queue: String,
    pub(super) task: TaskId,
    /// Where it was sent, once it was.
    pub(super) worker: Option<WorkerId>,
    /// In the mark on its prompt.
    pub(super) attempt: AttemptNo,
    #[serde(default)]
    pub(super) phase: Phase,
    #[serde(default)]
    pub(super) rendering_since: Option<Timestamp>,
    #[serde(rename = "job", serialize_with = "write_shared", deserialize_with = "read_shared")]
    pub(super) delivery: Arc<Delivery>,
    /// It ended so, and the queue has not heard it.
    #[serde(default, serialize_with = "write_ending", deserialize_with = "read_ending")]
    pub(super) ending: Option<Arc<DeliveryEnding>>,
}

fn write_shared<S: Serializer>(delivery: &Arc<Delivery>, serializer: S) -> Result<S::Ok, S::Error> {
    delivery.as_ref().serialize(serializer)
}

fn read_shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Delivery>, D::Error> {
    Delivery::deserialize(deserializer).map(Arc::new)
}

fn write_ending<S: Serializer>(
    ending: &Option<Arc<DeliveryEnding>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    ending.as_deref().serialize(serializer)
}

fn read_ending<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<DeliveryEnding>>, D::Error> {
    Ok(Option::<DeliveryEnding>::deserialize(deserializer)?.map(Arc::new))
}
