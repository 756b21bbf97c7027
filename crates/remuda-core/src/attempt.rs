//! One try of a task on one worker.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{AttemptNo, Failure, OwnerId, TaskId, Timestamp, WorkerId};

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// With the task's result.
    Completed,
    /// With an error of the task's own.
    Failed,
    /// With the infrastructure.
    Lost,
    /// Because somebody said so.
    Cancelled,
    /// Before ComfyUI began: given back, no budget used.
    Returned,
}

impl AttemptOutcome {
    /// The name used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Cancelled => "cancelled",
            Self::Returned => "returned",
        }
    }
}

impl fmt::Display for AttemptOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for AttemptOutcome {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Completed, Self::Failed, Self::Lost, Self::Cancelled, Self::Returned]
            .into_iter()
            .find(|outcome| outcome.as_str() == text)
            .ok_or_else(|| format!("unknown outcome of an attempt {text:?}"))
    }
}

/// One try of a task on one worker, under one prompt id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Of which task.
    pub task: TaskId,
    /// The first is 1.
    pub n: AttemptNo,
    /// Who holds or held it last.
    pub owner: OwnerId,
    /// Where.
    pub worker: WorkerId,
    /// The id of the prompt at ComfyUI, chosen before anything was sent.
    pub prompt_id: Uuid,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub outcome: Option<AttemptOutcome>,
    /// Why, when not well.
    pub failure: Option<Failure>,
    /// How long the GPU worked on it, when known.
    pub gpu_ms: Option<i64>,
}
