//! Taking tasks in, whoever brings them.

use std::collections::BTreeMap;
use std::time::Duration;

use remuda_core::{
    Errand, Idempotency, JsonText, NewTask, Origin, PendingReason, Placement, Priority, PromptExtra,
    Requirements, Status, Task, TaskId, TaskInput, Tenant, Timestamp,
};
use remuda_preflight::Question;
use remuda_store::{Glance, Submitted};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::watch::{for_end, look};
use super::{ServiceError, ServiceResult};
use crate::access::Caller;
use crate::dialect::anybody_listens;
use crate::options::TaskDefaults;
use crate::permits::Submission;
use crate::state::AppState;

/// A task as its submitter wants it: all but what pre-flight finds out.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Chosen before the submission, so that its end can be waited for.
    pub(crate) id: TaskId,
    /// The graph, byte for byte.
    pub(crate) workflow: Box<RawValue>,
    /// Files for inputs, by `node.input`.
    pub(crate) inputs: BTreeMap<String, String>,
    /// Files that were found for an earlier task with the same graph.
    pub(crate) pinned: Vec<Placement>,
    /// What it asks of a worker.
    pub(crate) requires: Requirements,
    /// What came beside the graph.
    pub(crate) extra: Option<Box<PromptExtra>>,
    /// Refuse also what is wrong only by the rules of ComfyUI's own nodes.
    pub(crate) strict: bool,
    /// What its submitter calls the workflow.
    pub(crate) workflow_id: Option<String>,
    /// How urgent.
    pub(crate) priority: Priority,
    /// Not before this moment.
    pub(crate) not_before: Option<Timestamp>,
    /// Not after this moment.
    pub(crate) deadline: Option<Timestamp>,
    /// How long it may render.
    pub(crate) timeout_s: i32,
    /// How often it may fail and be retried.
    pub(crate) max_retries: i32,
    /// What the submitter attached.
    pub(crate) metadata: Option<JsonText>,
    /// Whose the task becomes, if it is not its submitter's: an administrator may do it for another.
    pub(crate) tenant: Option<Tenant>,
    /// The ended task that it repeats.
    pub(crate) retry_of: Option<TaskId>,
    /// For submissions that may be repeated.
    pub(crate) idempotency: Option<Idempotency>,
    /// Through which other door than the task API it comes in.
    pub(crate) origin: Option<Origin>,
    /// What is to be done outside when it has ended.
    pub(crate) errands: Vec<Errand>,
}

impl Draft {
    /// Nothing but a graph.
    pub(crate) fn new(workflow: Box<RawValue>, defaults: &TaskDefaults) -> Self {
        Self {
            id: TaskId::new(),
            workflow,
            inputs: BTreeMap::new(),
            pinned: Vec::new(),
            requires: Requirements::default(),
            extra: None,
            strict: false,
            workflow_id: None,
            priority: defaults.priority,
            not_before: None,
            deadline: None,
            timeout_s: defaults.timeout_s,
            max_retries: defaults.max_retries,
            metadata: None,
            tenant: None,
            retry_of: None,
            idempotency: None,
            origin: None,
            errands: Vec::new(),
        }
    }
}

/// A task that may be queued.
#[derive(Debug)]
pub(crate) struct Checked {
    /// For the store.
    pub(crate) new: NewTask,
    /// What the submitter should know.
    pub(crate) warnings: Vec<String>,
    /// What is wrong with outputs that will not run, while others will; in ComfyUI's words.
    pub(crate) node_errors: Map<String, Value>,
}

/// A task that was taken in, or had been before.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The task. A repeated submission gets the task of the first one, however far that is.
    pub(crate) seen: Glance,
    /// Whether the same submission came before.
    pub(crate) before: bool,
    /// What the submitter should know.
    pub(crate) warnings: Vec<String>,
    /// What is wrong with outputs that will not run.
    pub(crate) node_errors: Map<String, Value>,
}

impl Taken {
    /// The task that the same submission made before.
    fn before(seen: Glance) -> Self {
        Self { seen, before: true, warnings: Vec::new(), node_errors: Map::new() }
    }
}

/// Looks at the graph of a draft that somebody brings. The permit is for the body in memory.
pub(crate) async fn check(
    state: &AppState,
    caller: &Caller,
    draft: Draft,
    permit: &Submission,
) -> ServiceResult<Checked> {
    let tenant = match draft.tenant {
        None => caller.tenant.clone(),
        Some(tenant) if caller.sees(&tenant) => tenant,
        Some(tenant) => return Err(ServiceError::ForeignTenant(tenant)),
    };
    let mut extra = draft.extra;
    let question = Question {
        tenant: tenant.clone(),
        workflow: draft.workflow,
        extra_data: extra.as_mut().and_then(|extra| extra.extra_data.take()),
        inputs: draft.inputs,
        pinned: draft.pinned,
        requires: draft.requires,
        targets: extra.as_ref().and_then(|extra| extra.targets.clone()),
        strict: draft.strict,
        held: Some(permit.held()),
    };
    let cleared = state.preflight.check(question).await?;
    if let Some(extra) = &mut extra {
        extra.extra_data = cleared.extra_data;
        extra.outputs = cleared.outputs;
    }
    let new = NewTask {
        id: draft.id,
        tenant,
        workflow_id: draft.workflow_id,
        priority: draft.priority,
        input: TaskInput {
            workflow: cleared.workflow,
            placements: cleared.placements,
            requires: cleared.requires,
            extra,
        },
        affinity: cleared.affinity,
        shape: cleared.shape,
        not_before: draft.not_before,
        deadline: draft.deadline,
        timeout_s: draft.timeout_s,
        max_retries: draft.max_retries,
        metadata: draft.metadata,
        retry_of: draft.retry_of,
        idempotency: draft.idempotency,
        origin: draft.origin,
        errands: draft.errands,
    };
    Ok(Checked { new, warnings: cleared.warnings, node_errors: cleared.node_errors })
}

/// Hands a task to the store, once more after doubt. When it returns, the task is durable. The permit is for the body in
/// memory, and ends with it.
pub(crate) async fn submit(state: &AppState, checked: Checked, permit: Submission) -> ServiceResult<Taken> {
    let Checked { new, warnings, node_errors } = checked;
    let (id, tenant) = (new.id, new.tenant.clone());
    if anybody_listens(state) {
        state.feed.takes_in(id);
    }
    let submitted = match state.store.submit(new.clone()).await {
        // Whether it was done is not known. The same id again cannot make a second task.
        Err(remuda_store::Error::Unavailable { .. }) => state.store.submit(new).await,
        other => other,
    };
    drop(permit);
    match submitted {
        Ok(Submitted::New(task)) => {
            state.metrics.submitted(&tenant);
            Ok(Taken { seen: Glance::of(task), before: false, warnings, node_errors })
        }
        Ok(Submitted::Before(task)) => {
            Ok(Taken { seen: look(state, task.id).await?, before: true, warnings, node_errors })
        }
        // With the id the caller can find out later whether it was taken in.
        Err(error @ remuda_store::Error::Unavailable { .. }) => Err(ServiceError::about(id)(error)),
        Err(error) => Err(error.into()),
    }
}

/// Submits a task, and waits for its end if that is wanted.
pub(crate) async fn submit_and_wait(
    state: &AppState,
    checked: Checked,
    permit: Submission,
    wait: Option<Duration>,
) -> ServiceResult<Taken> {
    let Some(wait) = wait else {
        let mut taken = submit(state, checked, permit).await?;
        if !taken.before {
            as_taken_in(&mut taken.seen.task);
        }
        return Ok(taken);
    };
    let id = checked.new.id;
    // Before the submission: nothing that happens to the task may be missed.
    let (_waiting, follow) = (state.permits.waiting()?, state.changes.follow(id));
    let mut taken = submit(state, checked, permit).await?;
    let first = taken.seen.task.id;
    let follow = if first == id { follow } else { state.changes.follow_late(first) };
    taken.seen = for_end(state, taken.seen, follow, wait).await?;
    Ok(taken)
}

/// The task that the same request made before. It was checked then, and what has changed since does not unmake it.
pub(crate) async fn submitted_before(
    state: &AppState,
    caller: &Caller,
    known: &Idempotency,
) -> ServiceResult<Option<Glance>> {
    submitted_of(state, &caller.tenant, known).await
}

/// The same, of the tenant of a task that the caller may see.
pub(super) async fn submitted_of(
    state: &AppState,
    tenant: &Tenant,
    known: &Idempotency,
) -> ServiceResult<Option<Glance>> {
    match state.store.submitted(tenant, &known.key).await? {
        Some((request, task)) if request != known.request => {
            Err(remuda_store::Error::Conflict { task }.into())
        }
        Some((_, task)) => Ok(state.store.glance(task).await?),
        None => Ok(None),
    }
}

/// Answers a repeated request with the task that the first one made, at its end if that is wanted. Whoever waits holds nothing
/// that others need: no body, and no permit but the one for waiting.
pub(crate) async fn repeated(
    state: &AppState,
    mut before: Glance,
    wait: Option<Duration>,
) -> ServiceResult<Taken> {
    if let Some(wait) = wait
        && !before.task.status.is_terminal()
    {
        let _waiting = state.permits.waiting()?;
        let follow = state.changes.follow_late(before.task.id);
        before = for_end(state, before, follow, wait).await?;
    }
    Ok(Taken::before(before))
}

/// With an idle worker waiting, a task runs from the commit that took it in. Its submitter is told what holds in every
/// case: that it was taken in.
fn as_taken_in(task: &mut Task) {
    if task.status == Status::Running && task.attempt == 1 {
        task.status = Status::Pending;
        task.reason = Some(PendingReason::Queued);
        task.worker = None;
        task.started_at = None;
        task.attempt = 0;
        task.version = 1;
    }
}
