//! `GET /api/v1/tasks/{id}/outputs/{n}`.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Method};
use remuda_core::TaskId;

use super::download::{Sendable, send};
use crate::access::ReadCaller;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::ApiPath;
use crate::service;
use crate::share::Visit;
use crate::state::AppState;

/// One file of a task's result.
///
/// Streamed. `Range` and `If-Range` resume a download, `If-None-Match` with the `ETag` (the SHA-256) saves one, and HEAD
/// answers without the file.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/outputs/{n}", tag = "tasks",
    params(
        ("id" = String, Path, description = "The task", format = Uuid),
        ("n" = i32, Path, description = "The number of the file"),
        ("Range" = Option<String>, Header, description = "A part of it, as `bytes=0-99`."),
    ),
    responses(
        (status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "A part of the file"),
        (status = 304, description = "You have it"),
        (status = 400, description = "The id or the number is malformed", body = ErrorBody),
        (status = 404, description = "No such task or file, or not yours", body = ErrorBody),
        (status = 416, description = "The range begins after the end", body = ErrorBody),
    ),
)]
pub(crate) async fn output(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiPath((id, n)): ApiPath<(String, String)>,
    method: Method,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let id: TaskId = id.parse()?;
    let n: i32 = n.parse().map_err(|_| {
        ApiError::bad_request("malformed_id", format!("{n:?} is not the number of an output; the first is 0"))
    })?;
    let file = service::output(&state, &Visit::guest(), &caller, id, n).await?;
    send(&state, &method, &headers, Sendable::from(&file)).await
}
