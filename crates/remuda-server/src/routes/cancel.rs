//! `DELETE /api/v1/tasks/{id}`.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use remuda_core::Status;

use super::shown::shown;
use crate::access::SubmitCaller;
use crate::error::{ApiResult, ErrorBody};
use crate::extract::{TaskPath, preferred_wait};
use crate::service;
use crate::state::AppState;
use crate::wire::TaskView;

/// Cancel a task.
///
/// A waiting task is cancelled at once (200). A running one is stopped by its runner, exactly that prompt and no other:
/// the answer is 202 until the runner has confirmed it, and `Prefer: wait=N` waits for that. Cancelling a cancelled
/// task again is 200; a completed or failed one is refused with 409. The record stays.
#[utoipa::path(
    delete, path = "/api/v1/tasks/{id}", tag = "tasks",
    params(
        ("id" = String, Path, description = "The task", format = Uuid),
        ("Prefer" = Option<String>, Header, description = "`wait=N`: answer when the task has ended, or after N seconds."),
    ),
    responses(
        (status = 200, description = "Cancelled", body = TaskView),
        (status = 202, description = "Its runner was told to stop it", body = TaskView),
        (status = 400, description = "The id is malformed", body = ErrorBody),
        (status = 404, description = "No such task, or not yours", body = ErrorBody),
        (status = 409, description = "It had ended before", body = ErrorBody),
    ),
)]
pub(crate) async fn cancel(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    TaskPath(id): TaskPath,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let seen = service::cancel(&state, &caller, id, preferred_wait(&headers)).await?;
    let cancelled = seen.task.status == Status::Cancelled;
    let mut response = shown(&state, seen, Vec::new()).await?;
    *response.status_mut() = if cancelled { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok(response)
}
