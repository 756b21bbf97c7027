//! `POST /api/v1/tasks/{id}/retry`.

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use remuda_core::Sha256;

use super::shown::shown;
use super::submit::{idempotency, taken_in};
use crate::access::SubmitCaller;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::{TaskPath, preferred_wait};
use crate::service::{self, Retried};
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
        (status = 429, description = "Your share is used up, or the tenant has reached a limit: `limit` names it", body = ErrorBody),
        (status = 503, description = "Too much is under way; see `Retry-After`", body = ErrorBody),
    ),
)]
pub(crate) async fn retry(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    TaskPath(id): TaskPath,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let request = Sha256::of(format!("retry {id}").as_bytes());
    let (idempotency, wait) = (idempotency(&headers, request)?, preferred_wait(&headers));
    let visit = Visit::current().ok_or_else(|| ApiError::internal("a route was reached without a visit"))?;
    match service::retry(&state, &caller, &visit, id, idempotency, wait).await? {
        Retried::Hastened(seen) => shown(&state, seen, Vec::new()).await,
        Retried::Again(taken) => taken_in(&state, taken, wait).await,
    }
}
