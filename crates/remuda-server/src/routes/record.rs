//! `GET /api/v1/tasks/{id}`.

use axum::extract::State;
use axum::response::Response;
use remuda_core::{PendingReason, Status};

use crate::access::ReadCaller;
use crate::compute::answer;
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
) -> ApiResult<Response> {
    let task = state.task(&caller, id).await?;
    let (status, reason, tenant) = (task.status, task.reason, task.tenant.clone());
    // About so much is said of a file; what else there is of a result is short.
    let mut size = task.result.as_ref().map_or(0, |result| result.files.len() * 512);
    let mut view = TaskView::new(task, state.public_url.as_ref());
    if let Some(input) = state.store.input(id).await? {
        size += input.workflow.get().len();
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
    answer(&state, &tenant, id, size, view).await
}
