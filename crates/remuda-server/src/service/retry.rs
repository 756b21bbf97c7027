//! Running a task again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::{FailureClass, Idempotency, Status, TaskId, TaskInput, Timestamp};
use remuda_store::Glance;

use super::submit::submitted_of;
use super::{Draft, ServiceError, ServiceResult, Taken, check, glance, repeated, submit_and_wait, whole};
use crate::access::Caller;
use crate::share::Visit;
use crate::state::AppState;

/// How a task is run again.
#[derive(Debug)]
pub(crate) enum Retried {
    /// It was waiting for its time, and waits no longer.
    Hastened(Glance),
    /// It had ended: a new one does the same.
    Again(Taken),
}

/// Runs a task again. With an idempotency key the same call again returns the same new task. What is read for it is charged to
/// this visit.
pub(crate) async fn retry(
    state: &AppState,
    caller: &Caller,
    visit: &Arc<Visit>,
    id: TaskId,
    idempotency: Option<Idempotency>,
    wait: Option<Duration>,
) -> ServiceResult<Retried> {
    let seen = glance(state, caller, id).await?;
    match seen.task.status {
        Status::Pending => {
            let task = state.store.hasten(id).await.map_err(ServiceError::about(id))?;
            Ok(Retried::Hastened(Glance::of(task)))
        }
        Status::Running => Err(ServiceError::Running(id)),
        Status::Completed | Status::Failed | Status::Cancelled => {
            again(state, caller, visit, seen, idempotency, wait).await.map(Retried::Again)
        }
    }
}

async fn again(
    state: &AppState,
    caller: &Caller,
    visit: &Arc<Visit>,
    seen: Glance,
    idempotency: Option<Idempotency>,
    wait: Option<Duration>,
) -> ServiceResult<Taken> {
    if let Some(known) = &idempotency
        && let Some(before) = submitted_of(state, &seen.task.tenant, known).await?
    {
        return repeated(state, before, wait).await;
    }
    let (mut old, counted) = whole(state, visit.whose(), seen).await?;
    if old.error.as_ref().is_some_and(|error| error.class == FailureClass::Harmful) {
        return Err(ServiceError::Harmful(old.id));
    }
    let metadata = old.metadata.take();
    // What it left is not needed, however long the new one is waited for.
    let old = old.briefly();
    drop(counted);
    let permit = state.permits.submission().await?;
    // It takes half as much room again as the body of a submission takes, because it is read from the store as well as written,
    // and has it before it is read.
    let size = state.store.input_size(old.id).await?.ok_or(ServiceError::NoTask(old.id))?;
    let kept = metadata.as_ref().map_or(0, |metadata| metadata.get().len() as u64);
    visit.expect((size / 2).saturating_mul(3).saturating_add(kept)).await?;
    let reading = state.permits.read().await?;
    let input = state.store.input(old.id).await?.ok_or(ServiceError::NoTask(old.id))?;
    drop(reading);
    let TaskInput { workflow, placements, requires, extra } = input;
    if let Some(field) = extra.as_ref().and_then(|extra| extra.sealed.first()) {
        return Err(ServiceError::SecretGone { task: old.id, field: field.clone() });
    }
    // Its files stay pinned, and so are not looked up by name again. Uploads may be deleted; what tasks left is no upload.
    let mut known = HashSet::new();
    let uploads = placements.iter().filter(|file| file.key.starts_with("assets/"));
    for file in uploads.filter(|file| known.insert(file.sha256)) {
        if state.store.asset(&old.tenant, file.sha256).await?.is_none() {
            let (sha256, filename) = (file.sha256, file.filename.clone());
            return Err(ServiceError::AssetGone { task: old.id, sha256, filename });
        }
    }
    let draft = Draft {
        // Of the task's tenant, not of the caller's.
        tenant: Some(old.tenant),
        pinned: placements,
        requires,
        extra,
        workflow_id: old.workflow_id,
        priority: old.priority,
        deadline: old.deadline.filter(|deadline| *deadline > Timestamp::now()),
        timeout_s: old.timeout_s,
        max_retries: old.max_retries,
        metadata,
        retry_of: Some(old.id),
        idempotency,
        ..Draft::new(workflow, &state.defaults)
    };
    let checked = check(state, caller, draft, &permit).await?;
    submit_and_wait(state, checked, permit, wait).await
}
