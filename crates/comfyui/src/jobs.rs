//! `/api/jobs` (0.6.0 and later): the cheap question about prompts.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::ids::PromptId;
use crate::limits::Route;

/// State of a job.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// Waiting.
    Pending,
    /// Running.
    #[serde(rename = "in_progress")]
    Running,
    /// Ended well.
    Completed,
    /// Ended badly; in 0.7.0 also when it was interrupted.
    Failed,
    /// Interrupted or deleted (after 0.7.0).
    Cancelled,
    /// A word this crate does not know.
    #[serde(other)]
    Unknown,
}

/// One job.
#[derive(Debug, Clone, Deserialize)]
pub struct Job {
    /// The prompt id.
    pub id: PromptId,
    /// Its state.
    pub status: JobStatus,
    /// The queue number; NaN and the like come as `None`.
    #[serde(default)]
    pub priority: Option<f64>,
    /// Milliseconds since 1970.
    #[serde(default)]
    pub create_time: Option<f64>,
    /// Milliseconds since 1970, once it ran.
    #[serde(default)]
    pub execution_start_time: Option<f64>,
    /// Milliseconds since 1970, once it ended.
    #[serde(default)]
    pub execution_end_time: Option<f64>,
    /// How many outputs there are.
    #[serde(default)]
    pub outputs_count: Option<u64>,
    /// One output to show, unless it is said at great length.
    #[serde(default, deserialize_with = "short")]
    pub preview_output: Option<Value>,
    /// The error, as in the history, unless it is said at great length.
    #[serde(default, deserialize_with = "short")]
    pub execution_error: Option<Value>,
    /// Id of the UI workflow, when it was sent along.
    #[serde(default)]
    pub workflow_id: Option<String>,
}

/// A page of jobs.
#[derive(Debug, Clone, Deserialize)]
pub struct JobsPage {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Where this page is.
    pub pagination: Pagination,
}

/// Position of a page.
#[derive(Debug, Clone, Deserialize)]
pub struct Pagination {
    /// First job of the page.
    pub offset: u64,
    /// Page size; `None` is everything.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Jobs that match.
    pub total: u64,
    /// Whether there are more.
    pub has_more: bool,
}

/// What to list. The default is everything, newest first.
///
/// ```
/// use comfyui::{JobsQuery, JobStatus};
/// let query = JobsQuery { status: vec![JobStatus::Pending, JobStatus::Running], limit: Some(10), ..Default::default() };
/// assert_eq!(query.limit, Some(10));
/// ```
#[derive(Debug, Clone, Default)]
pub struct JobsQuery {
    /// Only these states; empty is all.
    pub status: Vec<JobStatus>,
    /// Only jobs of this UI workflow.
    pub workflow_id: Option<String>,
    /// Sort by run time instead of creation.
    pub by_duration: bool,
    /// Oldest (or shortest) first.
    pub ascending: bool,
    /// Page size.
    pub limit: Option<u32>,
    /// First job.
    pub offset: Option<u32>,
}

impl Client {
    /// Lists jobs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] before 0.6.0.
    pub async fn jobs(&self, query: &JobsQuery) -> Result<JobsPage> {
        let mut call = self.get(&["api", "jobs"]).repeatable();
        if !query.status.is_empty() {
            let words: Vec<_> = query.status.iter().filter_map(word).collect();
            call = call.query("status", &words.join(","));
        }
        if let Some(workflow_id) = &query.workflow_id {
            call = call.query("workflow_id", workflow_id);
        }
        if query.by_duration {
            call = call.query("sort_by", "execution_duration");
        }
        if query.ascending {
            call = call.query("sort_order", "asc");
        }
        if let Some(limit) = query.limit {
            call = call.query("limit", &limit.to_string());
        }
        if let Some(offset) = query.offset {
            call = call.query("offset", &offset.to_string());
        }
        match call.read_if_there().await? {
            Some(page) => Ok(page),
            None => Err(Error::Unsupported { what: "/api/jobs", version: None }),
        }
    }

    /// One job; `None` when the server does not know it. Ask only where [`crate::Capabilities::jobs`] is true:
    /// an older server has no such route and also answers 404.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the 404 is that of a missing route.
    pub async fn job(&self, id: &PromptId) -> Result<Option<Job>> {
        // It repeats the whole prompt, as the history does.
        let call = self.get(&["api", "jobs", id.as_str()]).repeatable().bound(Route::History);
        match call.read().await {
            Ok(job) => Ok(Some(job)),
            // Only these words mean that the server does not know it; a proxy or an old server says 404 in others.
            Err(Error::Status { status: http::StatusCode::NOT_FOUND, body: Some(body), .. })
                if body.contains("\"error\"") && body.contains("Job not found") =>
            {
                Ok(None)
            }
            Err(Error::Status { status: http::StatusCode::NOT_FOUND, .. }) => {
                Err(Error::Unsupported { what: "/api/jobs", version: None })
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn has_jobs_route(&self) -> Result<bool> {
        // The cheapest page; a server whose list is broken by one odd entry still has the route.
        match self.get(&["api", "jobs"]).query("limit", "1").query("status", "pending").done().await {
            Ok(()) => Ok(true),
            Err(Error::Status { status, .. }) => Ok(status.is_server_error()),
            Err(error) => Err(error),
        }
    }
}

/// A value that may be anything, if its text is short: as a value it takes up to a hundred times the room.
fn short<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    const LONGEST: usize = 256 << 10;
    let text = Option::<Box<RawValue>>::deserialize(deserializer)?;
    let text = text.filter(|text| text.get().len() <= LONGEST);
    Ok(text.and_then(|text| serde_json::from_str(text.get()).ok()))
}

fn word(status: &JobStatus) -> Option<&'static str> {
    Some(match status {
        JobStatus::Pending => "pending",
        JobStatus::Running => "in_progress",
        JobStatus::Completed => "completed",
        JobStatus::Failed => "failed",
        JobStatus::Cancelled => "cancelled",
        JobStatus::Unknown => return None,
    })
}
