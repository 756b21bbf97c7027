//! A task as the API shows it.

use jiff::Timestamp;
use remuda_core::{
    Attempt, AttemptNo, Failure, JsonText, Lease, OutputFile, Placement, Task, TaskInput, TaskResult,
};
use remuda_store::Position;
use serde::Serialize;
use serde_json::value::RawValue;
use url::Url;
use utoipa::ToSchema;

use super::Requires;

/// A task. Lists leave out `payload`, `inputs`, `requires`, `attempts`, `attempt_count` and `position`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TaskView {
    /// Its name.
    #[schema(value_type = String, format = Uuid)]
    pub(crate) id: String,
    /// Whose it is.
    tenant: String,
    /// What its submitter calls the workflow.
    workflow_id: Option<String>,
    /// 0 to 9, higher first.
    priority: u8,
    /// `pending`, `running`, `completed`, `failed` or `cancelled`. The last three never change.
    #[schema(value_type = String, example = "pending")]
    status: &'static str,
    /// Why it waits: `queued`, `scheduled` or `retry`.
    #[schema(value_type = Option<String>)]
    reason: Option<&'static str>,
    /// Where it runs or last ran.
    worker_id: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When the last attempt began.
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    completed_at: Option<Timestamp>,
    /// What it left, once it is completed; of a failed one, what was done before it failed.
    result: Option<ResultView>,
    /// Why it, or its last attempt, failed.
    error: Option<String>,
    /// The kind of that failure: `validation`, `execution`, `out_of_memory`, `crash`, `connection`, `timeout`, `lost`,
    /// `delivery`, `harmful`.
    #[schema(value_type = Option<String>)]
    error_class: Option<&'static str>,
    /// The node at fault.
    error_node_id: Option<String>,
    /// ComfyUI's own words about it, up to 256 KiB; beyond that, `cut` says what was left out.
    #[schema(value_type = Option<Object>)]
    error_details: Option<JsonText>,
    /// How often an attempt failed by the task's own fault.
    retry_count: i32,
    /// How often a failed attempt may be retried.
    max_retries: i32,
    /// How often an attempt was lost with its machine. Not counted as a retry.
    losses: i32,
    /// The number of the last attempt.
    attempt: i32,
    /// How long it may render, in seconds.
    timeout_s: i32,
    /// Not before this moment: its start time, or the end of the delay after a failure.
    #[schema(value_type = String, format = DateTime)]
    run_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    deadline: Option<Timestamp>,
    /// When its cancellation was requested.
    #[schema(value_type = Option<String>, format = DateTime)]
    cancel_requested_at: Option<Timestamp>,
    /// What the submitter attached.
    #[schema(value_type = Option<Object>)]
    metadata: Option<JsonText>,
    /// The ended task that it repeats.
    #[schema(value_type = Option<String>, format = Uuid)]
    retry_of: Option<String>,
    /// Counts its changes; also the number of its last event.
    version: i64,
    /// How much is done, 0 to 1. While it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<f64>,
    /// How far it is: `placing`, `ahead`, `submitted`, `rendering` or `collecting`. While it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    phase: Option<&'static str>,
    /// How many tasks are ahead of it. While it is queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<PositionView>,
    /// The workflow, byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    payload: Option<Box<RawValue>>,
    /// Uploaded files that nodes read.
    #[serde(skip_serializing_if = "Option::is_none")]
    inputs: Option<Vec<InputView>>,
    /// What it needs of a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    requires: Option<Requires>,
    /// The last tries, at most 100, first to last.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<Vec<AttemptView>>,
    /// How many tries there were in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_count: Option<AttemptNo>,
    /// What the submitter should know. Only in the answer to a submission.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// A place in the queue.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PositionView {
    /// How many tasks will be claimed before it.
    ahead: i64,
    /// Whether they were counted; beyond 1,000 they are estimated.
    exact: bool,
}

/// What a task left.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResultView {
    /// Every file.
    files: Vec<FileView>,
    /// `outputs` of ComfyUI's history entry, as they were.
    #[schema(value_type = Object)]
    outputs: JsonText,
    /// From the first node to the last, in milliseconds.
    execution_ms: Option<i64>,
    /// Parts of the graph that ComfyUI refused while it ran the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    node_errors: Option<JsonText>,
}

/// One file that a task left.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileView {
    /// Its number.
    n: i32,
    /// Where to fetch it.
    url: String,
    /// Its name at ComfyUI.
    filename: String,
    /// The node that made it.
    node_id: String,
    /// Under which name the node listed it: `images`, `gifs`, `audio`, …
    output: String,
    /// `output` or `temp`.
    #[serde(rename = "type")]
    file_type: String,
    /// Media type.
    mime: String,
    /// In bytes.
    size: i64,
    /// Of the bytes.
    sha256: String,
}

/// An uploaded file that a node reads.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InputView {
    node_id: String,
    input: String,
    sha256: String,
    filename: String,
}

/// One try of a task on one worker.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AttemptView {
    /// The first is 1.
    n: i32,
    /// The worker.
    worker: String,
    /// The id of the prompt at ComfyUI.
    #[schema(value_type = String, format = Uuid)]
    prompt_id: String,
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    /// `completed`, `failed`, `lost`, `cancelled` or `returned`; null while it is under way.
    #[schema(value_type = Option<String>)]
    outcome: Option<&'static str>,
    /// Why, when not well.
    error: Option<String>,
    #[schema(value_type = Option<String>)]
    error_class: Option<&'static str>,
    /// How long the GPU worked on it.
    gpu_ms: Option<i64>,
}

/// A page of tasks, newest first.
#[derive(ToSchema)]
#[expect(dead_code, reason = "for the description of the API")]
pub(crate) struct TaskPage {
    /// Without `payload`.
    tasks: Vec<TaskView>,
    /// Pass it as `before` for the next page; null on the last.
    next: Option<String>,
}

impl TaskView {
    /// What lists show.
    pub(crate) fn new(task: Task, base: Option<&Url>) -> Self {
        let Failed { error, error_class, error_node_id, error_details } = failed(task.error);
        let id = task.id.to_string();
        Self {
            tenant: task.tenant.to_string(),
            workflow_id: task.workflow_id,
            priority: task.priority.get(),
            status: task.status.as_str(),
            reason: task.reason.map(|reason| reason.as_str()),
            worker_id: task.worker.map(String::from),
            created_at: task.created_at,
            started_at: task.started_at,
            completed_at: task.finished_at,
            result: task.result.map(|result| result_view(&id, result, base)),
            error,
            error_class,
            error_node_id,
            error_details,
            retry_count: task.failures,
            max_retries: task.max_retries,
            losses: task.losses,
            attempt: task.attempt,
            timeout_s: task.timeout_s,
            run_at: task.run_at,
            deadline: task.deadline,
            cancel_requested_at: task.cancel_at,
            metadata: task.metadata,
            retry_of: task.retry_of.map(|id| id.to_string()),
            version: task.version,
            progress: None,
            phase: None,
            position: None,
            payload: None,
            inputs: None,
            requires: None,
            attempts: None,
            attempt_count: None,
            warnings: Vec::new(),
            id,
        }
    }

    pub(crate) fn with_input(mut self, input: TaskInput) -> Self {
        self.payload = Some(input.workflow);
        self.inputs = Some(input.placements.into_iter().map(input_view).collect());
        self.requires = Some(input.requires.into());
        self
    }

    /// Everything of it but the workflow.
    pub(crate) fn with_rest_of(mut self, input: &TaskInput) -> Self {
        self.inputs = Some(input.placements.iter().cloned().map(input_view).collect());
        self.requires = Some(input.requires.clone().into());
        self
    }

    pub(crate) fn with_attempts(mut self, attempts: Vec<Attempt>, count: AttemptNo) -> Self {
        self.attempts = Some(attempts.into_iter().map(attempt_view).collect());
        self.attempt_count = Some(count);
        self
    }

    pub(crate) fn with_lease(mut self, lease: &Lease) -> Self {
        self.progress = Some(lease.progress);
        self.phase = Some(lease.phase.as_str());
        self
    }

    pub(crate) fn with_position(mut self, position: Position) -> Self {
        self.position = Some(PositionView { ahead: position.ahead, exact: position.exact });
        self
    }
}

#[derive(Default)]
struct Failed {
    error: Option<String>,
    error_class: Option<&'static str>,
    error_node_id: Option<String>,
    error_details: Option<JsonText>,
}

fn failed(failure: Option<Failure>) -> Failed {
    failure.map_or_else(Failed::default, |failure| Failed {
        error: Some(failure.message),
        error_class: Some(failure.class.as_str()),
        error_node_id: failure.node_id,
        error_details: failure.details,
    })
}

fn result_view(task: &str, result: TaskResult, base: Option<&Url>) -> ResultView {
    let file = |file: OutputFile| FileView {
        n: file.n,
        url: absolute(base, &format!("/api/v1/tasks/{task}/outputs/{}", file.n)),
        filename: file.filename,
        node_id: file.node_id,
        output: file.output,
        file_type: file.file_type,
        mime: file.mime,
        size: file.size,
        sha256: file.sha256.to_string(),
    };
    ResultView {
        files: result.files.into_iter().map(file).collect(),
        outputs: result.outputs,
        execution_ms: result.execution_ms,
        node_errors: result.node_errors,
    }
}

/// A path of ours, behind the public address if there is one.
pub(crate) fn absolute(base: Option<&Url>, path: &str) -> String {
    match base {
        Some(base) => format!("{}{path}", base.as_str().trim_end_matches('/')),
        None => path.to_owned(),
    }
}

fn input_view(placement: Placement) -> InputView {
    InputView {
        node_id: placement.node_id,
        input: placement.input,
        sha256: placement.sha256.to_string(),
        filename: placement.filename,
    }
}

fn attempt_view(attempt: Attempt) -> AttemptView {
    let Failed { error, error_class, .. } = failed(attempt.failure);
    AttemptView {
        n: attempt.n,
        worker: attempt.worker.into(),
        prompt_id: attempt.prompt_id.to_string(),
        started_at: attempt.started_at,
        ended_at: attempt.ended_at,
        outcome: attempt.outcome.map(|outcome| outcome.as_str()),
        error,
        error_class,
        gpu_ms: attempt.gpu_ms,
    }
}
