//! `GET /api/v1/tasks/{id}`.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderValue, header};
use remuda_core::{PendingReason, Status};

use super::large::Input;

use crate::access::ReadCaller;
use crate::compute::answer;
use crate::error::{ApiError, ApiResult, ErrorBody};
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
    let mut large = None;
    match state.large.input(&state, id).await? {
        Some(Input::Small(input)) => {
            size += input.workflow.get().len();
            view = view.with_input(input);
        }
        Some(Input::Large(input)) => {
            view = view.with_rest_of(&input);
            large = Some(input.workflow());
        }
        None => {}
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
    let Some(workflow) = large else { return answer(&state, &tenant, id, size, view).await };
    let head = state.compute_of("writing a task", &tenant, id, size, move || serde_json::to_string(&view));
    let head = head.await?.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(spliced(head, workflow))
}

/// The record with a workflow that is not copied into it: several readers may have the same one.
fn spliced(mut head: String, workflow: Bytes) -> Response {
    // The brace at the end.
    head.pop();
    head.push_str(",\"payload\":");
    let pieces = [Bytes::from(head), workflow, Bytes::from_static(b"}")];
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CONTENT_LENGTH, HeaderValue::from(pieces.iter().map(Bytes::len).sum::<usize>())),
    ];
    let pieces = futures_util::stream::iter(pieces.map(Ok::<_, std::convert::Infallible>));
    (headers, Body::from_stream(pieces)).into_response()
}
