//! `POST /api/v1/tasks`.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use remuda_core::{Idempotency, Sha256, Timestamp};

use super::shown::shown;
use crate::access::SubmitCaller;
use crate::compute::LIGHT;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::{preferred_wait, read_body_with, read_json};
use crate::service::{self, Draft, Taken};
use crate::state::AppState;
use crate::wire::{SubmitTask, TaskView};

const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

const APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Submit a task.
///
/// The task is durable when the answer comes. Nodes and models of the workflow are checked against the workers that
/// are known; what no worker can run is refused with 422. While no worker is known, the task is accepted with `warnings`.
///
/// With `Prefer: wait=30` the answer comes when the task has ended, or after 30 seconds (at most 600), whichever is
/// first, with the task as it is then; look at its `status`. Closing the connection does not cancel the task.
///
/// With an `Idempotency-Key` the same request can be sent again: the first task is returned with 200.
#[utoipa::path(
    post, path = "/api/v1/tasks", tag = "tasks",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "Your own name for this submission, at most 255 characters. The same key with the same body gives the same task."),
        ("Prefer" = Option<String>, Header, description = "`wait=N`: answer when the task has ended, or after N seconds."),
    ),
    request_body = SubmitTask,
    responses(
        (status = 201, description = "Taken in; `Location` names it", body = TaskView),
        (status = 200, description = "The same submission came before: its task", body = TaskView),
        (status = 400, description = "Not JSON", body = ErrorBody),
        (status = 409, description = "The idempotency key was used for another body", body = ErrorBody),
        (status = 413, description = "The body is too large", body = ErrorBody),
        (status = 422, description = "A field is wrong, or the graph cannot run", body = ErrorBody),
        (status = 429, description = "Your share is used up, or the tenant has reached a limit: `limit` names it", body = ErrorBody),
        (status = 503, description = "The store does not answer; see `Retry-After`", body = ErrorBody),
        (status = 507, description = "The disk is full", body = ErrorBody),
    ),
)]
pub(crate) async fn submit(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let (most, time) = (state.limits.body, state.limits.body_time);
    let (bytes, permit) = read_body_with(&headers, body, most, time, state.permits.submission()).await?;
    let idempotency = match headers.contains_key(IDEMPOTENCY_KEY) {
        true => {
            let text = bytes.clone();
            let hash = move || Sha256::of(&text);
            let hash = state
                .compute_admitted("hashing a request", &caller.tenant, &permit, bytes.len() / LIGHT, hash)
                .await?;
            idempotency(&headers, hash)?
        }
        false => None,
    };
    let wait = preferred_wait(&headers);
    if let Some(known) = &idempotency
        && let Some(before) = service::submitted_before(&state, &caller, known).await?
    {
        // What was sent is not needed, however long the task is waited for.
        drop((bytes, permit));
        let before = service::repeated(&state, before, wait).await?;
        return taken_in(&state, before, wait).await;
    }
    let (defaults, now) = (state.defaults.clone(), Timestamp::now());
    let (size, kind) = (bytes.len(), headers.get(header::CONTENT_TYPE).cloned());
    let read = move || read_json::<SubmitTask>(kind.as_ref(), &bytes)?.check(&defaults, now);
    let draft = state.compute_admitted("reading a request", &caller.tenant, &permit, size, read).await??;
    let draft = Draft { idempotency, ..draft };
    let checked = service::check(&state, &caller, draft, &permit).await?;
    let taken = service::submit_and_wait(&state, checked, permit, wait).await?;
    taken_in(&state, taken, wait).await
}

/// The answer to a submission.
pub(super) async fn taken_in(
    state: &AppState,
    taken: Taken,
    waited: Option<Duration>,
) -> ApiResult<Response> {
    let Taken { seen, before, warnings, .. } = taken;
    let place = format!("/api/v1/tasks/{}", seen.task.id);
    let mut response = shown(state, seen, warnings).await?;
    *response.status_mut() = if before { StatusCode::OK } else { StatusCode::CREATED };
    let headers = response.headers_mut();
    if let Ok(place) = HeaderValue::from_str(&place) {
        headers.insert(header::LOCATION, place);
    }
    if before {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    if let Some(wait) = waited
        && let Ok(applied) = HeaderValue::from_str(&format!("wait={}", wait.as_secs()))
    {
        headers.insert(APPLIED, applied);
    }
    Ok(response)
}

/// The client's own name for the request.
pub(super) fn idempotency(headers: &HeaderMap, request: Sha256) -> ApiResult<Option<Idempotency>> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().unwrap_or_default().trim();
    // Some clients quote it, as the draft standard does.
    let key = key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(key);
    if key.is_empty() || key.len() > 255 {
        let error = "Idempotency-Key must have 1 to 255 visible ASCII characters";
        return Err(ApiError::bad_request("bad_idempotency_key", error).field("Idempotency-Key"));
    }
    Ok(Some(Idempotency { key: key.to_owned(), request }))
}
