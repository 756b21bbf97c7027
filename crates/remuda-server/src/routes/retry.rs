//! `POST /api/v1/tasks/{id}/retry`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use remuda_core::{FailureClass, NewTask, Sha256, Status, Task, TaskId, TaskInput, Timestamp};
use remuda_runner::preflight::Question;

use super::submit::{answer_before, idempotency, known_before, take_in};
use crate::access::SubmitCaller;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::{TaskPath, preferred_wait};
use crate::share::Visit;
use crate::state::AppState;
use crate::wire::TaskView;

/// Run a task again.
///
/// An ended task never changes: a new task with the same workflow, files and settings is made, and its `retry_of` names the
/// old one (201). It is checked as a submission is; its files stay those that were found for the old one. A task that waits
/// for its next attempt or its start time waits no longer (200). A running one is refused.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/retry", tag = "tasks",
    params(
        ("id" = String, Path, description = "The task", format = Uuid),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key gives the same new task."),
        ("Prefer" = Option<String>, Header, description = "`wait=N`: answer when the new task has ended, or after N seconds."),
    ),
    responses(
        (status = 201, description = "A new task; `Location` names it", body = TaskView),
        (status = 200, description = "The task itself waits no longer", body = TaskView),
        (status = 400, description = "The id is malformed", body = ErrorBody),
        (status = 404, description = "No such task, or not yours", body = ErrorBody),
        (status = 409, description = "It is running, it was set aside as harmful, or it came with a secret that is gone by now", body = ErrorBody),
        (status = 422, description = "The graph cannot run any more", body = ErrorBody),
        (status = 503, description = "Too much is under way; see `Retry-After`", body = ErrorBody),
    ),
)]
pub(crate) async fn retry(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    TaskPath(id): TaskPath,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let task = state.task(&caller, id).await?;
    match task.status {
        Status::Pending => {
            let task = state.store.hasten(id).await.map_err(|error| ApiError::from(error).task(id))?;
            Ok((StatusCode::OK, Json(TaskView::new(task, state.public_url.as_ref()))).into_response())
        }
        Status::Running => {
            let error = "the task is running: cancel it first, or wait for its end";
            Err(ApiError::new(StatusCode::CONFLICT, "running", error).task(id))
        }
        Status::Failed if task.error.as_ref().is_some_and(|error| error.class == FailureClass::Harmful) => {
            let error = "the task was set aside because Remuda's own work on its graph did harm: it is not run again; \
                         submit another graph";
            Err(ApiError::new(StatusCode::CONFLICT, "harmful", error).task(id))
        }
        Status::Completed | Status::Failed | Status::Cancelled => again(&state, task, &headers).await,
    }
}

async fn again(state: &AppState, old: Task, headers: &HeaderMap) -> ApiResult<Response> {
    let request = Sha256::of(format!("retry {}", old.id).as_bytes());
    let idempotency = idempotency(headers, request)?;
    if let Some(known) = &idempotency
        && let Some(task) = known_before(state, &old.tenant, known).await?
    {
        return answer_before(state, task, preferred_wait(headers)).await?.answer(state, Vec::new());
    }
    let permit = state.permits.submission().await?;
    // It takes twice the room that the body of a submission takes, because it is read from the store as well as written,
    // and has it before it is read.
    let size = state.store.input_size(old.id).await?.ok_or_else(|| ApiError::no_task(old.id))?;
    if let Some(visit) = Visit::current() {
        visit.expect(size.saturating_mul(2)).await?;
    }
    let reading = state.permits.read().await?;
    let input = state.store.input(old.id).await?.ok_or_else(|| ApiError::no_task(old.id))?;
    drop(reading);
    if let Some(name) = input.extra.as_ref().and_then(|extra| extra.sealed.first()) {
        let error = format!(
            "the task came with a secret (extra_data.{name}), which was removed when it ended: submit it again with its keys"
        );
        return Err(ApiError::new(StatusCode::CONFLICT, "secret_gone", error).task(old.id));
    }
    let TaskInput { workflow, placements, requires, mut extra } = input;
    let question = Question {
        tenant: old.tenant.clone(),
        workflow,
        extra_data: extra.as_mut().and_then(|extra| extra.extra_data.take()),
        inputs: Default::default(),
        pinned: placements,
        requires,
        targets: extra.as_ref().and_then(|extra| extra.targets.clone()),
        strict: false,
        held: Some(permit.held()),
    };
    let cleared = state.preflight.check(question).await?;
    if let Some(extra) = &mut extra {
        extra.extra_data = cleared.extra_data;
    }
    let input = TaskInput {
        workflow: cleared.workflow,
        placements: cleared.placements,
        requires: cleared.requires,
        extra,
    };
    let new = NewTask {
        id: TaskId::new(),
        // Of the task, not of the caller: an administrator may do it for another.
        tenant: old.tenant,
        workflow_id: old.workflow_id,
        priority: old.priority,
        input,
        affinity: cleared.affinity,
        shape: cleared.shape,
        not_before: None,
        deadline: old.deadline.filter(|deadline| *deadline > Timestamp::now()),
        timeout_s: old.timeout_s,
        max_retries: old.max_retries,
        metadata: old.metadata,
        retry_of: Some(old.id),
        origin: None,
        idempotency,
    };
    take_in(state, new, preferred_wait(headers), Some(permit)).await?.answer(state, cleared.warnings)
}
