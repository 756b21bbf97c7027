//! Running a task again.

use std::time::Duration;

use remuda_core::{FailureClass, Idempotency, Status, Task, TaskId, TaskInput, Timestamp};

use super::{Draft, ServiceError, ServiceResult, Taken, check, get, repeated, submit_and_wait};
use crate::access::Caller;
use crate::share::Visit;
use crate::state::AppState;

/// How a task is run again.
#[derive(Debug)]
pub(crate) enum Retried {
    /// It was waiting for its time, and waits no longer.
    Hastened(Task),
    /// It had ended: a new one does the same.
    Again(Taken),
}

/// Runs a task again. With an idempotency key the same call again returns the same new task.
pub(crate) async fn retry(
    state: &AppState,
    caller: &Caller,
    id: TaskId,
    idempotency: Option<Idempotency>,
    wait: Option<Duration>,
) -> ServiceResult<Retried> {
    let task = get(state, caller, id).await?;
    match task.status {
        Status::Pending => {
            let task = state.store.hasten(id).await.map_err(ServiceError::about(id))?;
            Ok(Retried::Hastened(task))
        }
        Status::Running => Err(ServiceError::Running(id)),
        Status::Failed if task.error.as_ref().is_some_and(|error| error.class == FailureClass::Harmful) => {
            Err(ServiceError::Harmful(id))
        }
        Status::Completed | Status::Failed | Status::Cancelled => {
            again(state, task, idempotency, wait).await.map(Retried::Again)
        }
    }
}

async fn again(
    state: &AppState,
    old: Task,
    idempotency: Option<Idempotency>,
    wait: Option<Duration>,
) -> ServiceResult<Taken> {
    if let Some(known) = &idempotency
        && let Some(taken) = repeated(state, &old.tenant, known, wait).await?
    {
        return Ok(taken);
    }
    let permit = state.permits.submission().await?;
    // It takes twice the room that the body of a submission takes, because it is read from the store as well as written,
    // and has it before it is read.
    let size = state.store.input_size(old.id).await?.ok_or(ServiceError::NoTask(old.id))?;
    if let Some(visit) = Visit::current() {
        visit.expect(size.saturating_mul(2)).await?;
    }
    let reading = state.permits.read().await?;
    let input = state.store.input(old.id).await?.ok_or(ServiceError::NoTask(old.id))?;
    drop(reading);
    let TaskInput { workflow, placements, requires, extra } = input;
    if let Some(field) = extra.as_ref().and_then(|extra| extra.sealed.first()) {
        return Err(ServiceError::SecretGone { task: old.id, field: field.clone() });
    }
    let draft = Draft {
        pinned: placements,
        requires,
        extra,
        workflow_id: old.workflow_id,
        priority: old.priority,
        deadline: old.deadline.filter(|deadline| *deadline > Timestamp::now()),
        timeout_s: old.timeout_s,
        max_retries: old.max_retries,
        metadata: old.metadata,
        retry_of: Some(old.id),
        idempotency,
        ..Draft::new(workflow, &state.defaults)
    };
    // Of the task's tenant, not of the caller's: an administrator may do it for another.
    let checked = check(state, &old.tenant, draft, &permit).await?;
    submit_and_wait(state, checked, permit, wait).await
}
