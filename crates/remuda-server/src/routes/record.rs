//! `GET /api/v1/tasks/{id}`.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderValue, header};
use remuda_core::Failure;

use super::large::Input;

use crate::access::ReadCaller;
use crate::compute::answer;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::TaskPath;
use crate::service::{self, Details};
use crate::share::{Held, Visit};
use crate::state::AppState;
use crate::wire::TaskView;

/// About how many bytes are said of an attempt.
const ATTEMPT: usize = 256;

/// From here on an answer is counted.
const LARGE: usize = 64 << 10;

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
    let seen = service::glance(&state, &caller, id).await?;
    let (task, pass) = service::whole(&state, &Visit::guest(), seen).await?;
    let (status, reason, tenant, attempt) = (task.status, task.reason, task.tenant.clone(), task.attempt);
    let mut size = task.text_bytes();
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
    let Details { attempts, lease, position } = service::details(&state, id, status, reason).await?;
    let told: usize = attempts
        .iter()
        .map(|attempt| ATTEMPT + attempt.failure.as_ref().map_or(0, Failure::text_bytes))
        .sum();
    size += told;
    let told = match told {
        0..LARGE => None,
        _ => Some(state.memory.take(&Visit::guest(), 2 * told as u64).map_err(|_| ApiError::no_memory())?),
    };
    let pass = (pass, told);
    view = view.with_attempts(attempts, attempt);
    if let Some(lease) = lease {
        view = view.with_lease(&lease);
    }
    if let Some(position) = position {
        view = view.with_position(position);
    }
    let Some(workflow) = large else {
        let answer = answer(&state, &tenant, id, size, view).await?;
        return Ok(answer.map(|body| Held::wrap(body, pass)));
    };
    let head = state.compute_of("writing a task", &tenant, id, size, move || serde_json::to_string(&view));
    let head = head.await?.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(spliced(head, workflow).map(|body| Held::wrap(body, pass)))
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
