//! The parts of the server's answers that the commands show. Unknown fields are ignored, so that an older command
//! works with a newer server.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A task.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct TaskView {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) workflow_id: Option<String>,
    #[serde(default)]
    pub(crate) priority: i64,
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) worker_id: Option<String>,
    pub(crate) created_at: Timestamp,
    #[serde(default)]
    pub(crate) started_at: Option<Timestamp>,
    #[serde(default)]
    pub(crate) completed_at: Option<Timestamp>,
    #[serde(default)]
    pub(crate) error: Option<String>,
    #[serde(default)]
    pub(crate) error_class: Option<String>,
    #[serde(default)]
    pub(crate) retry_count: i64,
    #[serde(default)]
    pub(crate) max_retries: i64,
    #[serde(default)]
    pub(crate) progress: Option<f64>,
    #[serde(default)]
    pub(crate) position: Option<PositionView>,
    #[serde(default)]
    pub(crate) result: Option<ResultView>,
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
    #[serde(default)]
    pub(crate) attempts: Vec<AttemptView>,
}

impl TaskView {
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "cancelled")
    }

    pub(crate) fn outputs(&self) -> &[OutputView] {
        self.result.as_ref().map_or(&[], |result| &result.files)
    }
}

/// A place in the queue.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct PositionView {
    pub(crate) ahead: i64,
    #[serde(default)]
    pub(crate) exact: bool,
}

/// What a task left.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct ResultView {
    #[serde(default)]
    pub(crate) files: Vec<OutputView>,
}

/// One file that a task left.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct OutputView {
    #[serde(default)]
    pub(crate) n: i64,
    pub(crate) url: String,
    pub(crate) filename: String,
    #[serde(default)]
    pub(crate) mime: String,
    #[serde(default)]
    pub(crate) size: u64,
}

/// One try.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct AttemptView {
    #[serde(default)]
    pub(crate) n: i64,
    #[serde(default)]
    pub(crate) worker: Option<String>,
    #[serde(default)]
    pub(crate) outcome: Option<String>,
    #[serde(default)]
    pub(crate) error: Option<String>,
    #[serde(default)]
    pub(crate) started_at: Option<Timestamp>,
    #[serde(default)]
    pub(crate) ended_at: Option<Timestamp>,
}

/// A page of tasks.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct TaskPage {
    pub(crate) tasks: Vec<TaskView>,
    #[serde(default)]
    pub(crate) next: Option<String>,
}

/// A worker.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct WorkerView {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) pod_name: Option<String>,
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) endpoint: Option<String>,
    #[serde(default)]
    pub(crate) current_task_id: Option<String>,
    #[serde(default)]
    pub(crate) last_active_at: Option<Timestamp>,
    #[serde(default)]
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) health: Option<String>,
    #[serde(default)]
    pub(crate) labels: Vec<String>,
    #[serde(default)]
    pub(crate) version: Option<String>,
}

/// An uploaded file.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct AssetView {
    pub(crate) sha256: String,
    #[serde(default)]
    pub(crate) size: u64,
}
