//! What the journal keeps of a job: enough for another process to find its render, or to say how it ended.

use std::sync::Arc;

use remuda_core::{AttemptNo, Phase, TaskId, Timestamp, WorkerId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use super::{Job, JobEnding};

/// The shape of a file. One of another shape is set aside.
pub(super) const VERSION: u32 = 1;

/// One file of the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) version: u32,
    /// Whose job it is.
    pub(super) employer: String,
    pub(super) task: TaskId,
    /// Where it was sent, once it was.
    pub(super) worker: Option<WorkerId>,
    /// In the mark on its prompt.
    pub(super) attempt: AttemptNo,
    #[serde(default)]
    pub(super) phase: Phase,
    #[serde(default)]
    pub(super) rendering_since: Option<Timestamp>,
    #[serde(serialize_with = "write_shared", deserialize_with = "read_shared")]
    pub(super) job: Arc<Job>,
    /// It ended so, and the employer has not heard it.
    #[serde(default, serialize_with = "write_ending", deserialize_with = "read_ending")]
    pub(super) ending: Option<Arc<JobEnding>>,
}

/// The name of a job towards runners: the same for every delivery of the same work with the same graph.
pub(super) fn task_of(job: &Job) -> TaskId {
    TaskId(Uuid::new_v5(&job.prompt_id, job.key.as_bytes()))
}

fn write_shared<S: Serializer>(job: &Arc<Job>, serializer: S) -> Result<S::Ok, S::Error> {
    job.as_ref().serialize(serializer)
}

fn read_shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Job>, D::Error> {
    Job::deserialize(deserializer).map(Arc::new)
}

fn write_ending<S: Serializer>(ending: &Option<Arc<JobEnding>>, serializer: S) -> Result<S::Ok, S::Error> {
    ending.as_deref().serialize(serializer)
}

fn read_ending<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<JobEnding>>, D::Error> {
    Ok(Option::<JobEnding>::deserialize(deserializer)?.map(Arc::new))
}
