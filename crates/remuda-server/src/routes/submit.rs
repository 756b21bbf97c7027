//! `POST /api/v1/tasks`.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use remuda_core::{
    Idempotency, NewTask, PendingReason, Sha256, Status, Task, TaskId, TaskInput, Tenant, Timestamp,
};
use remuda_runner::preflight::Question;
use remuda_store::Submitted;

use crate::access::SubmitCaller;
use crate::compute::LIGHT;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::{preferred_wait, read_body_with, read_json};
use crate::permits::Submission;
use crate::state::AppState;
use crate::waiting;
use crate::wire::{SubmitTask, TaskView, Wanted};

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
    if let Some(known) = &idempotency
        && let Some(task) = known_before(&state, &caller.tenant, known).await?
    {
        drop(permit);
        let wait = preferred_wait(&headers);
        return answer_before(&state, task, wait).await?.answer(&state, Vec::new());
    }
    let (defaults, now) = (state.defaults.clone(), Timestamp::now());
    let (size, kind) = (bytes.len(), headers.get(header::CONTENT_TYPE).cloned());
    let read = move || read_json::<SubmitTask>(kind.as_ref(), &bytes)?.check(&defaults, now);
    let Wanted {
        workflow_id,
        priority,
        payload,
        inputs,
        requires,
        not_before,
        deadline,
        timeout_s,
        max_retries,
        metadata,
    } = state.compute_admitted("reading a request", &caller.tenant, &permit, size, read).await??;

    let question = Question {
        tenant: caller.tenant.clone(),
        workflow: payload,
        extra_data: None,
        inputs,
        pinned: Vec::new(),
        requires,
        targets: None,
        strict: false,
        held: Some(permit.held()),
    };
    let cleared = state.preflight.check(question).await?;
    let input = TaskInput {
        workflow: cleared.workflow,
        placements: cleared.placements,
        requires: cleared.requires,
        extra: None,
    };
    let new = NewTask {
        id: TaskId::new(),
        tenant: caller.tenant,
        workflow_id,
        priority,
        input,
        affinity: cleared.affinity,
        shape: cleared.shape,
        not_before,
        deadline,
        timeout_s,
        max_retries,
        metadata,
        retry_of: None,
        origin: None,
        idempotency,
    };
    take_in(&state, new, preferred_wait(&headers), Some(permit)).await?.answer(&state, cleared.warnings)
}

/// A task that was taken in, or had been before.
pub(crate) struct TakenIn {
    task: Task,
    before: bool,
    waited: Option<Duration>,
}

impl TakenIn {
    pub(crate) fn answer(self, state: &AppState, warnings: Vec<String>) -> ApiResult<Response> {
        let place = format!("/api/v1/tasks/{}", self.task.id);
        let mut view = TaskView::new(self.task, state.public_url.as_ref());
        view.warnings = warnings;
        let status = if self.before { StatusCode::OK } else { StatusCode::CREATED };
        let mut response = (status, Json(view)).into_response();
        let headers = response.headers_mut();
        if let Ok(place) = HeaderValue::from_str(&place) {
            headers.insert(header::LOCATION, place);
        }
        if self.before {
            headers.insert(REPLAYED, HeaderValue::from_static("true"));
        }
        if let Some(wait) = self.waited
            && let Ok(applied) = HeaderValue::from_str(&format!("wait={}", wait.as_secs()))
        {
            headers.insert(APPLIED, applied);
        }
        Ok(response)
    }
}

/// The task that the same request made before. It was checked then, and what has changed since does not unmake it.
pub(crate) async fn known_before(
    state: &AppState,
    tenant: &Tenant,
    known: &Idempotency,
) -> ApiResult<Option<Task>> {
    match state.store.submitted(tenant, &known.key).await? {
        Some((request, task)) if request != known.request => {
            Err(remuda_store::Error::Conflict { task }.into())
        }
        Some((_, task)) => Ok(state.store.task(task).await?),
        None => Ok(None),
    }
}

pub(crate) async fn answer_before(
    state: &AppState,
    mut task: Task,
    wait: Option<Duration>,
) -> ApiResult<TakenIn> {
    if let Some(wait) = wait {
        let _permit = state.permits.waiting()?;
        let follow = state.changes.follow(task.id);
        task = waiting::for_end(state, task, follow, wait).await?;
    }
    Ok(TakenIn { task, before: true, waited: wait })
}

/// Hands a task to the store, and waits for its end if that is wanted. The permit is for the body in memory, and ends with it.
pub(crate) async fn take_in(
    state: &AppState,
    new: NewTask,
    wait: Option<Duration>,
    permit: Option<Submission>,
) -> ApiResult<TakenIn> {
    let id = new.id;
    let waiting = match wait {
        // Before the submission: nothing that happens to the task may be missed.
        Some(_) => Some((state.permits.waiting()?, state.changes.follow(id))),
        None => None,
    };
    let submitted = hand_in(state, new).await?;
    drop(permit);
    let before = matches!(submitted, Submitted::Before(_));
    let (Submitted::New(mut task) | Submitted::Before(mut task)) = submitted;
    if let (Some((_permit, follow)), Some(wait)) = (waiting, wait) {
        let follow = if task.id == id { follow } else { state.changes.follow(task.id) };
        task = waiting::for_end(state, task, follow, wait).await?;
    }
    if !before && wait.is_none() {
        as_taken_in(&mut task);
    }
    Ok(TakenIn { task, before, waited: wait })
}

/// Hands a task to the store, once more after doubt.
pub(crate) async fn hand_in(state: &AppState, new: NewTask) -> ApiResult<Submitted> {
    let (id, tenant) = (new.id, new.tenant.clone());
    let submitted = match state.store.submit(new.clone()).await {
        // Whether it was done is not known. The same id again cannot make a second task.
        Err(remuda_store::Error::Unavailable { .. }) => state.store.submit(new).await,
        other => other,
    };
    let submitted = submitted.map_err(|error| {
        let unknown = matches!(error, remuda_store::Error::Unavailable { .. });
        let error = ApiError::from(error);
        // With the id the caller can find out later whether it was taken in.
        if unknown { error.task(id) } else { error }
    })?;
    if matches!(submitted, Submitted::New(_)) {
        state.metrics.submitted(&tenant);
    }
    Ok(submitted)
}

/// With an idle worker waiting, a task runs from the commit that took it in. Its submitter is told what holds in every
/// case: that it was taken in.
fn as_taken_in(task: &mut Task) {
    if task.status == Status::Running && task.attempt == 1 {
        task.status = Status::Pending;
        task.reason = Some(PendingReason::Queued);
        task.worker = None;
        task.started_at = None;
        task.attempt = 0;
        task.version = 1;
    }
}

/// The client's own name for the request.
pub(crate) fn idempotency(headers: &HeaderMap, request: Sha256) -> ApiResult<Option<Idempotency>> {
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
