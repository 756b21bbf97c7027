//! Live frames from sidecars.

use axum::extract::{Request, State};
use http::StatusCode;
use remuda_runner::wire;

use super::sidecar::Sidecar;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::read_body;
use crate::state::AppState;

/// Live frames of running tasks
///
/// Progress and previews, several in one body: each is the length of its head (4 bytes, highest first), the head
/// `{task, attempt, what, payload}` as JSON, and `payload` bytes of picture. Frames of tasks that are not the caller's are
/// dropped.
#[utoipa::path(
    post, path = "/api/v1/worker/frames", tag = "worker",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    request_body(content = Vec<u8>, content_type = "application/vnd.remuda.frames"),
    responses(
        (status = 204, description = "Passed on, as far as somebody follows"),
        (status = 400, description = "They cannot be read", body = ErrorBody),
        (status = 413, description = "More than 8 MiB", body = ErrorBody),
    ),
)]
pub(crate) async fn frames(
    State(state): State<AppState>,
    sidecar: Sidecar,
    request: Request,
) -> ApiResult<StatusCode> {
    let (parts, body) = request.into_parts();
    let limit = wire::frames::LARGEST as u64;
    let body = read_body(&parts.headers, body, limit, state.limits.body_time).await?;
    let frames =
        wire::frames::decode(body).map_err(|error| ApiError::bad_request("bad_frames", error.to_string()))?;
    state.live.sweep(&state.hub);
    for frame in frames {
        let current = state.live.is_current(&*state.store, sidecar.owner, frame.task, frame.attempt);
        if current.await {
            state.hub.publish(frame);
        }
    }
    Ok(StatusCode::NO_CONTENT)
}
