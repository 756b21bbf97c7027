//! Every change in a task's life, as functions over values.
//!
//! ```text
//!  submit ─▶ pending (scheduled) ─▶ pending (queued) ◀──────────────┐ give_back, lose
//!                 ▲                      │ claim                    │
//!                 │                      ▼                          │
//!                 └── pending (retry) ◀─ running ◀─ adopt ──────────┘
//!                        end: failed     │ end
//!                                        ▼
//!                            completed | failed | cancelled      these never change
//! ```
//!
//! Each function changes the task in place, raises its version by one and returns the event with that number; the
//! store writes both in one transaction. What must not happen is an error here, not a check in SQL.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use crate::{
    Attempt, AttemptNo, AttemptOutcome, EventKind, Failure, FailureClass, FeedEntry, JsonText, Lease,
    NewTask, OwnerId, PendingReason, Phase, Policy, Requirements, Sha256, Status, Task, TaskEvent, TaskId,
    TaskResult, Tenant, Timestamp, Upon, Verdict, WorkerId,
};

/// How a runner says that an attempt ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case", try_from = "Told")]
pub enum Ending {
    /// With this result.
    Completed {
        /// What it left.
        result: TaskResult,
        /// How long the GPU worked.
        gpu_ms: Option<i64>,
    },
    /// With this error; its class decides what follows.
    Failed {
        /// What went wrong.
        failure: Failure,
        /// What was done before that. It becomes the task's result if the task is not tried again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partial: Option<Box<TaskResult>>,
    },
    /// It was stopped because its task was cancelled.
    Cancelled,
}

/// An ending as it is told. Its fields are read where they stand: the way that is made for enums would keep all of them
/// as values first, whose size is the teller's choice.
#[derive(Deserialize)]
struct Told {
    how: How,
    result: Option<TaskResult>,
    gpu_ms: Option<i64>,
    failure: Option<Failure>,
    partial: Option<Box<TaskResult>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum How {
    Completed,
    Failed,
    Cancelled,
}

impl TryFrom<Told> for Ending {
    type Error = &'static str;

    fn try_from(told: Told) -> Result<Self, Self::Error> {
        let Told { how, result, gpu_ms, failure, partial } = told;
        Ok(match how {
            How::Completed => Self::Completed { result: result.ok_or("missing field `result`")?, gpu_ms },
            How::Failed => Self::Failed { failure: failure.ok_or("missing field `failure`")?, partial },
            How::Cancelled => Self::Cancelled,
        })
    }
}

impl Ending {
    /// Cuts what a failure says when it is too long to be kept.
    pub fn bound(&mut self) {
        if let Self::Failed { failure, .. } = self {
            failure.bound();
        }
    }

    /// What the attempt left, whole or in part.
    pub fn result(&self) -> Option<&TaskResult> {
        match self {
            Self::Completed { result, .. } => Some(result),
            Self::Failed { partial, .. } => partial.as_deref(),
            Self::Cancelled => None,
        }
    }
}

/// A task that cannot make this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the task is {0}")]
pub struct NotPossible(pub Status);

/// What the end of an attempt did.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// To be written with the task.
    pub event: TaskEvent,
    /// How the attempt is closed.
    pub outcome: AttemptOutcome,
    /// Why, when not well.
    pub failure: Option<Failure>,
    /// How long the GPU worked, when known.
    pub gpu_ms: Option<i64>,
    /// A result came and is not used, because the task was cancelled before or is tried again: its files must go.
    pub discarded: bool,
}

/// What else a change brings about. The store writes it in the same commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effects {
    /// For the feed of the tenant.
    pub feed: FeedEntry,
    /// Errands of the task that fall due. Stores say the same where the row of a task comes to its end: releases that know of
    /// no errands end tasks, too.
    pub due: &'static [Upon],
}

impl Effects {
    /// Of a change: the task after it, and the event that tells it.
    pub fn of(task: &Task, event: &TaskEvent) -> Self {
        Self { feed: event.into(), due: Upon::due(task.status) }
    }
}

fn after(now: Timestamp, delay: Duration) -> Timestamp {
    now.checked_add(delay).unwrap_or(Timestamp::MAX)
}

fn event(task: &mut Task, now: Timestamp, kind: EventKind, data: impl Into<JsonText>) -> TaskEvent {
    task.version += 1;
    TaskEvent { task: task.id, n: task.version, at: now, kind, data: data.into() }
}

/// What is told of a failure. Its details stay the text that they are.
fn told(task: &Task, failure: &Failure, run_at: Option<Timestamp>) -> JsonText {
    #[derive(Serialize)]
    struct Data<'a> {
        worker: Option<&'a WorkerId>,
        attempt: AttemptNo,
        error: &'a Failure,
        #[serde(skip_serializing_if = "Option::is_none")]
        run_at: Option<Timestamp>,
    }
    JsonText::of(&Data { worker: task.worker.as_ref(), attempt: task.attempt, error: failure, run_at })
}

fn wait(task: &mut Task, reason: PendingReason, run_at: Timestamp) {
    task.status = Status::Pending;
    task.reason = Some(reason);
    task.run_at = run_at;
}

fn finish(task: &mut Task, now: Timestamp, status: Status) {
    task.status = status;
    task.reason = None;
    task.finished_at = Some(now);
}

/// The task that an earlier submission of the same made: one with its idempotency key, or else one with its id. `by_key` is
/// what is known of the key, with the hash of its request; `by_id` the tenant of the task with this id. An error names the
/// task that is in the way: the key was used for another request, or the id is another tenant's.
pub fn made_before(
    new: &NewTask,
    by_key: Option<(Sha256, TaskId)>,
    by_id: Option<&Tenant>,
) -> Result<Option<TaskId>, TaskId> {
    match (&new.idempotency, by_key) {
        (Some(known), Some((request, task))) if request == known.request => return Ok(Some(task)),
        (Some(_), Some((_, task))) => return Err(task),
        _ => {}
    }
    match by_id {
        None => Ok(None),
        Some(tenant) if *tenant == new.tenant => Ok(Some(new.id)),
        Some(_) => Err(new.id),
    }
}

/// A new task, with the rank and the cost that the queue gave it.
pub fn submit(new: &NewTask, now: Timestamp, rank: i64, cost_ms: i64) -> (Task, TaskEvent) {
    let scheduled = new.not_before.filter(|&moment| moment > now);
    let mut task = Task {
        id: new.id,
        tenant: new.tenant.clone(),
        workflow_id: new.workflow_id.clone(),
        priority: new.priority,
        status: Status::Pending,
        reason: Some(if scheduled.is_some() { PendingReason::Scheduled } else { PendingReason::Queued }),
        lane: new.input.requires.lane(),
        affinity: new.affinity,
        shape: new.shape,
        cost_ms,
        rank,
        created_at: now,
        run_at: scheduled.unwrap_or(now),
        deadline: new.deadline,
        started_at: None,
        finished_at: None,
        timeout_s: new.timeout_s,
        max_retries: new.max_retries,
        failures: 0,
        losses: 0,
        attempt: 0,
        fence: crate::Fence(0),
        version: 0,
        cancel_at: None,
        worker: None,
        avoid_worker: None,
        avoid_until: None,
        error: None,
        result: None,
        metadata: new.metadata.clone(),
        retry_of: new.retry_of,
        origin: new.origin.clone(),
        hidden_at: None,
    };
    let event = event(&mut task, now, EventKind::Submitted, json!({}));
    (task, event)
}

/// Who claims, and for which worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimer {
    /// The process.
    pub owner: OwnerId,
    /// Its worker.
    pub worker: WorkerId,
    /// Where live frames of the worker can be had.
    pub gateway: Option<String>,
    /// The task will wait in the worker's own queue behind another.
    pub ahead: bool,
}

/// A queued task becomes a running one, under a new attempt and fence and this prompt id.
pub fn claim(
    task: &mut Task,
    now: Timestamp,
    policy: &Policy,
    by: &Claimer,
    prompt_id: Uuid,
) -> Result<(Lease, Attempt, TaskEvent), NotPossible> {
    if task.status != Status::Pending {
        return Err(NotPossible(task.status));
    }
    task.status = Status::Running;
    task.reason = None;
    task.attempt += 1;
    task.fence = task.fence.next();
    task.started_at = Some(now);
    task.worker = Some(by.worker.clone());
    let lease = Lease {
        task: task.id,
        fence: task.fence,
        attempt: task.attempt,
        owner: by.owner,
        worker: by.worker.clone(),
        prompt_id,
        until: after(now, policy.lease),
        phase: if by.ahead { Phase::Ahead } else { Phase::Placing },
        progress: 0.0,
        rendering_since: None,
        gateway: by.gateway.clone(),
        wanted: false,
    };
    let attempt = Attempt {
        task: task.id,
        n: task.attempt,
        owner: by.owner,
        worker: by.worker.clone(),
        prompt_id,
        started_at: now,
        ended_at: None,
        outcome: None,
        failure: None,
        gpu_ms: None,
    };
    let data = json!({"worker": by.worker, "attempt": task.attempt});
    let event = event(task, now, EventKind::Claimed, data);
    Ok((lease, attempt, event))
}

/// Another owner takes over the attempt under way: same attempt, same prompt id, next fence.
pub fn adopt(
    task: &mut Task,
    lease: &mut Lease,
    now: Timestamp,
    policy: &Policy,
    owner: OwnerId,
    gateway: Option<String>,
) -> TaskEvent {
    task.fence = task.fence.next();
    lease.fence = task.fence;
    lease.owner = owner;
    lease.gateway = gateway;
    lease.until = after(now, policy.lease);
    let data = json!({"worker": lease.worker, "attempt": lease.attempt});
    event(task, now, EventKind::Adopted, data)
}

/// An attempt ended, as its holder says. The lease goes. A cancellation that came first wins, whatever the end was.
pub fn end(task: &mut Task, now: Timestamp, policy: &Policy, ending: Ending, dice: f64) -> Ended {
    if task.cancel_at.is_some() || ending == Ending::Cancelled {
        return cancelled(task, now, ending.result().is_some());
    }
    match ending {
        Ending::Completed { result, gpu_ms } => {
            task.result = Some(result);
            task.error = None;
            finish(task, now, Status::Completed);
            let data = json!({"worker": task.worker, "attempt": task.attempt});
            let event = event(task, now, EventKind::Completed, data);
            Ended { event, outcome: AttemptOutcome::Completed, failure: None, gpu_ms, discarded: false }
        }
        Ending::Failed { failure, partial } => failed(task, now, policy, failure, partial, dice),
        Ending::Cancelled => cancelled(task, now, false),
    }
}

fn cancelled(task: &mut Task, now: Timestamp, discarded: bool) -> Ended {
    task.cancel_at.get_or_insert(now);
    finish(task, now, Status::Cancelled);
    let event = event(task, now, EventKind::Cancelled, json!({}));
    Ended { event, outcome: AttemptOutcome::Cancelled, failure: None, gpu_ms: None, discarded }
}

fn failed(
    task: &mut Task,
    now: Timestamp,
    policy: &Policy,
    failure: Failure,
    partial: Option<Box<TaskResult>>,
    dice: f64,
) -> Ended {
    let class = failure.class;
    let verdict = policy.verdict(class, task.failures, task.losses, task.max_retries, dice);
    if class.is_loss() {
        task.losses += 1;
    } else {
        task.failures += 1;
    }
    let outcome = if class.is_loss() { AttemptOutcome::Lost } else { AttemptOutcome::Failed };
    task.error = Some(failure.clone());
    let mut discarded = false;
    let event = match verdict {
        Verdict::Again(delay) => {
            let run_at = after(now, delay);
            let reason = if delay.is_zero() { PendingReason::Queued } else { PendingReason::Retry };
            wait(task, reason, run_at);
            discarded = partial.is_some();
            task.avoid_worker.clone_from(&task.worker);
            task.avoid_until = Some(after(run_at, policy.avoid));
            let kind = if class.is_loss() { EventKind::Lost } else { EventKind::RetryScheduled };
            let data = told(task, &failure, Some(run_at));
            event(task, now, kind, data)
        }
        Verdict::Fail => {
            task.result = partial.map(|partial| *partial);
            finish(task, now, Status::Failed);
            let data = told(task, &failure, None);
            event(task, now, EventKind::Failed, data)
        }
    };
    Ended { event, outcome, failure: Some(failure), gpu_ms: None, discarded }
}

/// The holder gives the task back before ComfyUI began. No budget is used. When the worker found that it lacks
/// something, `learnt` are the requirements under which the task waits from now on.
pub fn give_back(task: &mut Task, now: Timestamp, learnt: Option<&Requirements>) -> Ended {
    if task.cancel_at.is_some() {
        return cancelled(task, now, false);
    }
    if let Some(requires) = learnt {
        task.lane = requires.lane();
    }
    wait(task, PendingReason::Queued, now);
    task.started_at = None;
    let data = json!({"worker": task.worker, "attempt": task.attempt});
    let event = event(task, now, EventKind::Returned, data);
    Ended { event, outcome: AttemptOutcome::Returned, failure: None, gpu_ms: None, discarded: false }
}

/// Nobody renewed the lease and nobody adopted the attempt. The fence rises, so that the old owner, should it
/// wake, changes nothing.
pub fn lose(task: &mut Task, now: Timestamp, policy: &Policy) -> Ended {
    task.fence = task.fence.next();
    if task.cancel_at.is_some() {
        return cancelled(task, now, false);
    }
    let place = task.worker.as_ref().map_or("its worker", WorkerId::as_str).to_owned();
    let message = format!("the process that ran it on {place} did not report any more");
    failed(task, now, policy, Failure::new(FailureClass::Lost, message), None, 0.0)
}

/// The task did enough harm, wherever it is. Like a loss it raises the fence: whoever holds a lease on it changes nothing
/// any more. A cancellation that came first wins.
pub fn set_aside(task: &mut Task, now: Timestamp, failure: Failure) -> Result<Ended, NotPossible> {
    if task.status.is_terminal() {
        return Err(NotPossible(task.status));
    }
    task.fence = task.fence.next();
    if task.cancel_at.is_some() {
        return Ok(cancelled(task, now, false));
    }
    task.failures += 1;
    task.error = Some(failure.clone());
    finish(task, now, Status::Failed);
    let data = told(task, &failure, None);
    let event = event(task, now, EventKind::Failed, data);
    Ok(Ended {
        event,
        outcome: AttemptOutcome::Failed,
        failure: Some(failure),
        gpu_ms: None,
        discarded: false,
    })
}

/// Somebody asks for the end. A waiting task ends at once; a running one is marked for its holder.
/// Asking twice is the same as asking once (`None`).
pub fn cancel(task: &mut Task, now: Timestamp) -> Result<Option<TaskEvent>, NotPossible> {
    match task.status {
        Status::Pending => Ok(Some(cancelled(task, now, false).event)),
        Status::Running if task.cancel_at.is_some() => Ok(None),
        Status::Running => {
            task.cancel_at = Some(now);
            Ok(Some(event(task, now, EventKind::CancelRequested, json!({}))))
        }
        Status::Completed | Status::Failed | Status::Cancelled => Err(NotPossible(task.status)),
    }
}

/// The deadline of a waiting task passed.
pub fn expire(task: &mut Task, now: Timestamp) -> Result<TaskEvent, NotPossible> {
    if task.status != Status::Pending {
        return Err(NotPossible(task.status));
    }
    let failure = Failure::new(FailureClass::Timeout, "its deadline passed before a worker was free");
    task.error = Some(failure.clone());
    finish(task, now, Status::Failed);
    Ok(event(task, now, EventKind::Failed, json!({"error": failure})))
}

/// The moment of a scheduled or delayed task has come, or somebody does not want to wait for it. Not an event: its
/// place in the queue was known before.
pub fn release(task: &mut Task, now: Timestamp) -> bool {
    let waits = matches!(task.reason, Some(PendingReason::Scheduled | PendingReason::Retry));
    if waits {
        wait(task, PendingReason::Queued, now);
    }
    waits
}

#[cfg(test)]
mod tests;
