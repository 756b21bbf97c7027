//! `GET /api/v1/tasks/{id}`.

use axum::Json;
use axum::extract::State;
use remuda_core::{PendingReason, Status};

use crate::access::ReadCaller;
use crate::error::{ApiResult, ErrorBody};
use crate::extract::TaskPath;
use crate::state::AppState;
use crate::wire::TaskView;

/// One task, with everything that is known of it.
///
/// It stays readable after its end, until the retention is over.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "The task", format = Uuid)),
    responses(
        (status = 200, description = "The task", body = TaskView),
        (status = 400, description = "The id is malformed", body = ErrorBody),
        (status = 404, description = "No such task, or not yours", body = ErrorBody),
    ),
)]
pub(crate) async fn get(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    TaskPath(id): TaskPath,
) -> ApiResult<Json<TaskView>> {
    let task = state.task(&caller, id).await?;
    let (status, reason) = (task.status, task.reason);
    let mut view = TaskView::new(task, state.public_url.as_ref());
    if let Some(input) = state.store.input(id).await? {
        view = view.with_input(input);
    }
    view = view.with_attempts(state.store.attempts(id).await?);
    if status == Status::Running
        && let Some(lease) = state.store.lease(id).await?
    {
        view = view.with_lease(&lease);
    }
    if reason == Some(PendingReason::Queued)
        && let Some(position) = state.store.position(id).await?
    {
        view = view.with_position(position);
    }
    Ok(Json(view))
}
