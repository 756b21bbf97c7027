//! Files on their way to a worker and back.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http::{HeaderValue, StatusCode, header};
use remuda_core::{AttemptNo, Fence, LeaseRef, Sha256, Status, TaskId};
use remuda_files::{BoxError, FileKey};
use remuda_sidecar as sidecar;
use remuda_store::Error as StoreError;

use super::deliveries::Arrived;
use super::sidecar::{Sidecar, current, of_lease, too_much};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::{ApiPath, ApiQuery, TaskPath, skip};
use crate::routes::assets::timely;
use crate::state::AppState;

/// What a refused file may still bring before the connection is closed, so that its sender sees the answer.
const COURTESY: u64 = 4 << 20;

/// A file that a task reads
///
/// Only files that the task names, and only under the current lease.
#[utoipa::path(
    get, path = "/api/v1/worker/tasks/{id}/input", tag = "worker", operation_id = "worker_input",
    params(
        ("id" = String, Path, description = "The task", format = Uuid),
        ("fence" = i64, Query, description = "Of the lease"),
        ("key" = String, Query, description = "The key of one of the task's placements"),
        ("remuda-owner" = String, Header, description = "The process that asks", format = Uuid),
    ),
    responses(
        (status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, description = "The task does not name it, or it is gone", body = ErrorBody),
        (status = 409, description = "The lease is another process's", body = ErrorBody),
    ),
)]
pub(crate) async fn input(
    State(state): State<AppState>,
    sidecar: Sidecar,
    TaskPath(task): TaskPath,
    ApiQuery(query): ApiQuery<sidecar::InputQuery>,
) -> ApiResult<Response> {
    current(&state, &sidecar, LeaseRef { task, fence: query.fence }).await?;
    let reading = state.permits.read().await?;
    let input = state.store.input(task).await.map_err(of_lease)?.ok_or(StoreError::Fenced)?;
    let placement = input.placements.into_iter().find(|placement| placement.key == query.key);
    drop((input.workflow, input.extra, reading));
    let placement =
        placement.ok_or_else(|| ApiError::not_found("file of the task", &query.key).task(task))?;
    let permit = state.permits.download()?;
    let content = state.files.get(&FileKey::parse(&placement.key)?, None).await?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_LENGTH, HeaderValue::from(content.size)),
    ];
    let stream = content.stream.map(move |chunk| {
        let _held_to_the_end = &permit;
        chunk.inspect_err(|error| tracing::warn!(%error, "a file on its way to a worker broke off"))
    });
    Ok((headers, Body::from_stream(stream)).into_response())
}

/// Deliver a file of an attempt
///
/// The body is the file. It becomes visible only when the attempt ends well; sent again, it replaces what came before.
#[utoipa::path(
    put, path = "/api/v1/worker/tasks/{id}/outputs/{n}", tag = "worker", operation_id = "worker_output",
    params(
        ("id" = String, Path, description = "The task", format = Uuid),
        ("n" = i32, Path, description = "The number of the file, from 0"),
        ("fence" = i64, Query, description = "Of the lease"),
        ("attempt" = i32, Query, description = "The attempt"),
        ("filename" = String, Query, description = "Its name at ComfyUI"),
        ("size" = Option<u64>, Query, description = "Its size, if that is known"),
        ("remuda-owner" = String, Header, description = "The process that asks", format = Uuid),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "`{key, size, sha256}`", body = serde_json::Value),
        (status = 400, description = "It did not arrive whole", body = ErrorBody),
        (status = 409, description = "The lease is another process's", body = ErrorBody),
        (status = 413, description = "It is too large", body = ErrorBody),
        (status = 422, description = "The task has reached its limit of files or bytes", body = ErrorBody),
        (status = 507, description = "The disk is full", body = ErrorBody),
    ),
)]
pub(crate) async fn output(
    State(state): State<AppState>,
    sidecar: Sidecar,
    ApiPath((task, n)): ApiPath<(String, u32)>,
    ApiQuery(query): ApiQuery<sidecar::OutputQuery>,
    body: Body,
) -> ApiResult<Json<sidecar::Delivered>> {
    let lease = LeaseRef { task: task.parse()?, fence: query.fence };
    let limits = &state.limits;
    let left = limits.task_outputs.saturating_sub(state.live.deliveries.bytes_beside(lease, n));
    let limit = limits.output.min(left);
    let too_many_bytes = || {
        let error = format!("the outputs of a task may have {} bytes together", limits.task_outputs);
        too_much(lease.task, "tasks.max_output_total", error)
    };
    let admitted = async {
        if n >= limits.task_files {
            let error = format!("a task may have {} output files", limits.task_files);
            return Err(too_much(lease.task, "graph.output_files", error));
        }
        if left == 0 {
            return Err(too_many_bytes());
        }
        if query.size.is_some_and(|size| size > limit) {
            return Err(ApiError::too_large("the file", limit));
        }
        let found = current(&state, &sidecar, lease).await?;
        if found.attempt != query.attempt {
            return Err(StoreError::Fenced.into());
        }
        Ok(state.permits.delivery().await?)
    };
    let _permit = match admitted.await {
        Ok(permit) => permit,
        Err(error) => {
            skip(&mut body.into_data_stream(), COURTESY).await;
            return Err(error);
        }
    };
    let key = FileKey::output(
        lease.task.0,
        u32::try_from(query.attempt).unwrap_or_default(),
        u64::try_from(query.fence.0).unwrap_or_default(),
        n,
        &query.filename,
    );
    let coming = Arc::new(state.live.deliveries.begin(lease, sidecar.owner, n, limits.task_outputs));
    let counted = Arc::clone(&coming);
    let pieces = body.into_data_stream().map(move |chunk| {
        let chunk = chunk.map_err(BoxError::from)?;
        // Others of the task may come at the same time.
        if counted.more(chunk.len() as u64) { Ok(chunk) } else { Err("too many bytes".into()) }
    });
    let stored = match state.files.put(&key, timely(pieces, &state.limits), Some(limit)).await {
        Err(_) if coming.is_refused() => return Err(too_many_bytes()),
        stored => stored?,
    };
    // A lease that was lost meanwhile has a successor, which delivers its own.
    if let Err(error) = current(&state, &sidecar, lease).await {
        if error.body.code == sidecar::FENCED {
            state.files.delete(&key).await?;
        }
        return Err(error);
    }
    let sha256 = Sha256(stored.sha256.0);
    let arrived = Arrived { key: key.clone(), size: stored.size, sha256 };
    if let Some(replaced) = coming.arrived(arrived) {
        state.files.delete(&replaced).await?;
    }
    Ok(Json(sidecar::Delivered { key: key.to_string(), size: stored.size, sha256 }))
}

/// Remove the files of an attempt whose result is not used
///
/// Also after its end, as long as nobody else has the task.
#[utoipa::path(
    delete, path = "/api/v1/worker/tasks/{id}/outputs", tag = "worker", operation_id = "worker_discard",
    params(
        ("id" = String, Path, description = "The task", format = Uuid),
        ("fence" = i64, Query, description = "Of the lease"),
        ("attempt" = i32, Query, description = "The attempt"),
        ("remuda-owner" = String, Header, description = "The process that asks", format = Uuid),
    ),
    responses(
        (status = 204, description = "They are gone"),
        (status = 409, description = "The lease is another process's, or the files are a result", body = ErrorBody),
    ),
)]
pub(crate) async fn discard(
    State(state): State<AppState>,
    sidecar: Sidecar,
    TaskPath(id): TaskPath,
    ApiQuery(query): ApiQuery<sidecar::AttemptQuery>,
) -> ApiResult<StatusCode> {
    let task = state.store.task(id).await.map_err(of_lease)?.ok_or(StoreError::Fenced)?;
    if task.fence != query.fence || task.attempt != query.attempt {
        return Err(StoreError::Fenced.into());
    }
    // It is the last one.
    let attempts = state.store.attempts(id, 1).await.map_err(of_lease)?;
    let own = attempts.iter().any(|one| one.n == query.attempt && one.owner == sidecar.owner);
    if !own {
        return Err(StoreError::Fenced.into());
    }
    if task.status == Status::Completed {
        let error = "the files are the result of the task";
        return Err(ApiError::new(StatusCode::CONFLICT, "in_use", error).task(id));
    }
    state.live.deliveries.forget(LeaseRef { task: id, fence: query.fence });
    state.files.delete_all(&folder(id, query.attempt, query.fence)).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn folder(task: TaskId, attempt: AttemptNo, fence: Fence) -> FileKey {
    let number = (u32::try_from(attempt).unwrap_or_default(), u64::try_from(fence.0).unwrap_or_default());
    FileKey::outputs_of_attempt(task.0, number.0, number.1)
}
