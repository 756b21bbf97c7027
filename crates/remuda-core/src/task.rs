//! One request to run a workflow.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    AttemptNo, Errand, Failure, Fence, JsonText, LaneId, Origin, PendingReason, Priority, PromptExtra,
    Requirements, Sha256, Status, TaskId, TaskResult, Tenant, Timestamp, Version, WorkerId,
};

/// A task as the store keeps it, without its input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its name.
    pub id: TaskId,
    /// Whose it is.
    pub tenant: Tenant,
    /// What its submitter calls the workflow.
    pub workflow_id: Option<String>,
    /// How urgent.
    pub priority: Priority,
    /// Where it is in its life.
    pub status: Status,
    /// Why it waits, while it does.
    pub reason: Option<PendingReason>,
    /// Its requirements' name.
    pub lane: LaneId,
    /// Tasks with an equal value use the same models. For keeping models loaded.
    pub affinity: Option<i64>,
    /// The shape of its graph, under which its cost is learnt.
    pub shape: i64,
    /// What it is expected to cost, in milliseconds of a GPU.
    pub cost_ms: i64,
    /// Its place in the queue: lower first, see [`crate::schedule`].
    pub rank: i64,
    /// When it came in.
    pub created_at: Timestamp,
    /// Not before this moment.
    pub run_at: Timestamp,
    /// Not after this moment.
    pub deadline: Option<Timestamp>,
    /// When the last attempt began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How long it may render.
    pub timeout_s: i32,
    /// How often it may fail and be tried again.
    pub max_retries: i32,
    /// How often an attempt failed by the task's own fault.
    pub failures: i32,
    /// How often an attempt was lost.
    pub losses: i32,
    /// The last attempt's number, 0 before the first.
    pub attempt: AttemptNo,
    /// The last owner's number.
    pub fence: Fence,
    /// Counts the changes.
    pub version: Version,
    /// When its cancellation was requested.
    pub cancel_at: Option<Timestamp>,
    /// Where it runs or last ran.
    pub worker: Option<WorkerId>,
    /// A worker that should not get it …
    pub avoid_worker: Option<WorkerId>,
    /// … before this moment.
    pub avoid_until: Option<Timestamp>,
    /// Why it, or its last attempt, failed.
    pub error: Option<Failure>,
    /// What it left.
    pub result: Option<TaskResult>,
    /// The submitter's own, returned as it came.
    pub metadata: Option<JsonText>,
    /// The ended task that it repeats, because somebody asked for that.
    #[serde(default)]
    pub retry_of: Option<TaskId>,
    /// Through which other door it came in.
    #[serde(default)]
    pub origin: Option<Origin>,
    /// When its client took it out of the lists of its dialect. Not a change of the task: its version stays.
    #[serde(default)]
    pub hidden_at: Option<Timestamp>,
}

/// About how many bytes are said of a file.
const FILE: usize = 512;

impl Task {
    /// About how many bytes it takes to say what it left, why it failed, and what its submitter keeps with it. All of these
    /// may be long; the rest of a task never is.
    pub fn text_bytes(&self) -> usize {
        let text = |text: &Option<JsonText>| text.as_ref().map_or(0, |text| text.get().len());
        let left = self.result.as_ref().map_or(0, |result| {
            result.files.len() * FILE + result.outputs.get().len() + text(&result.node_errors)
        });
        left + self.error.as_ref().map_or(0, Failure::text_bytes) + text(&self.metadata)
    }

    /// The task without what may be long.
    ///
    /// ```
    /// # use remuda_core::{JsonText, Task};
    /// # fn shown(task: &Task) {
    /// let brief = task.briefly();
    /// assert_eq!((brief.id, brief.status), (task.id, task.status));
    /// assert_eq!(brief.text_bytes(), 0);
    /// # }
    /// ```
    pub fn briefly(&self) -> Self {
        Self {
            id: self.id,
            tenant: self.tenant.clone(),
            workflow_id: self.workflow_id.clone(),
            lane: self.lane.clone(),
            worker: self.worker.clone(),
            avoid_worker: self.avoid_worker.clone(),
            origin: self.origin.clone(),
            error: None,
            result: None,
            metadata: None,
            ..*self
        }
    }

    /// Whether attempts of an ended task may have left files that are not its result: all but the first were lost, given back
    /// or adopted; and what was not completed may have been stopped while its files were on their way.
    pub fn may_have_left_files(&self) -> bool {
        let only_one = self.attempt == 1 && self.fence.0 == 1;
        let clean = self.status == Status::Completed && only_one;
        self.status.is_terminal() && self.attempt > 0 && !clean
    }
}

/// What to run. Written once with the task and never changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskInput {
    /// The graph, byte for byte as it came.
    pub workflow: Box<RawValue>,
    /// Files that must be at the worker first.
    #[serde(default)]
    pub placements: Vec<Placement>,
    /// What it needs of a worker.
    #[serde(default)]
    pub requires: Requirements,
    /// What its client sent beside the graph.
    #[serde(default)]
    pub extra: Option<Box<PromptExtra>>,
}

impl PartialEq for TaskInput {
    fn eq(&self, other: &Self) -> bool {
        self.workflow.get() == other.workflow.get()
            && self.placements == other.placements
            && self.requires == other.requires
            && self.extra == other.extra
    }
}

/// A file that a node reads: placed in the worker's input folder, its name put into the graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The node.
    pub node_id: String,
    /// Its input.
    pub input: String,
    /// Which bytes, pinned when the task came in.
    pub sha256: Sha256,
    /// Where they are in the file store.
    pub key: String,
    /// What the file was called.
    pub filename: String,
}

/// A client's own name for a submission: the same key with the same request gives the same task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idempotency {
    /// Chosen by the client.
    pub key: String,
    /// Of the whole request.
    pub request: Sha256,
}

/// A task to be.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// Chosen by the caller, so that a submission whose answer was lost can be repeated.
    pub id: TaskId,
    /// Whose.
    pub tenant: Tenant,
    /// What its submitter calls the workflow.
    pub workflow_id: Option<String>,
    /// How urgent.
    pub priority: Priority,
    /// What to run; its requirements give the lane.
    pub input: TaskInput,
    /// Which models it uses, as one number.
    pub affinity: Option<i64>,
    /// The shape of its graph, under which its cost is learnt.
    pub shape: i64,
    /// Not before this moment.
    pub not_before: Option<Timestamp>,
    /// Not after this moment.
    pub deadline: Option<Timestamp>,
    /// How long it may render.
    pub timeout_s: i32,
    /// How often it may fail and be tried again.
    pub max_retries: i32,
    /// What the submitter attached.
    pub metadata: Option<JsonText>,
    /// The ended task that it repeats.
    pub retry_of: Option<TaskId>,
    /// For submissions that may be repeated.
    pub idempotency: Option<Idempotency>,
    /// Through which other door it came in.
    pub origin: Option<Origin>,
    /// What is to be done outside when it has ended.
    pub errands: Vec<Errand>,
}

impl NewTask {
    /// A task of the default tenant with every default: 30 minutes, three retries, priority 5.
    pub fn new(workflow: Box<RawValue>) -> Self {
        Self {
            id: TaskId::new(),
            tenant: Tenant::default_tenant(),
            workflow_id: None,
            priority: Priority::default(),
            input: TaskInput {
                workflow,
                placements: Vec::new(),
                requires: Requirements::default(),
                extra: None,
            },
            affinity: None,
            shape: 0,
            not_before: None,
            deadline: None,
            timeout_s: 1800,
            max_retries: 3,
            metadata: None,
            retry_of: None,
            idempotency: None,
            origin: None,
            errands: Vec::new(),
        }
    }
}
