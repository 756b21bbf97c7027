//! Workers, claims, beats and endings.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use remuda_core::transition::Ending;
use remuda_core::{Claim, Failure, FailureClass, LeaseRef, Sha256, WorkerSpec};
use remuda_files::FileKey;
use remuda_runner::wire;
use remuda_store::{
    Acquired, AdoptRequest, BeatReply, BeatRequest, ClaimRequest, EndReply, Error as StoreError,
};
use serde::de::IgnoredAny;

use super::sidecar::{Said, Sidecar, foreign_file, of_lease};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::{ApiPath, ApiQuery, read_body_with};
use crate::state::AppState;
use crate::wire::printable;

/// Which installation this is
///
/// Part of the marker that a runner puts on every prompt.
#[utoipa::path(
    get, path = "/api/v1/worker/installation", tag = "worker", operation_id = "worker_installation",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    responses(
        (status = 200, description = "`{id, lease_ms}`", body = serde_json::Value),
        (status = 403, description = "The key lacks the scope `worker`", body = ErrorBody),
    ),
)]
pub(crate) async fn installation(
    State(state): State<AppState>,
    _: Sidecar,
) -> ApiResult<Json<wire::Installation>> {
    let lease_ms = u64::try_from(state.lease.as_millis()).ok();
    Ok(Json(wire::Installation { id: state.installation().await?.id, lease_ms }))
}

/// Register a worker and take its lease
///
/// `yours` is false while another process drives the worker.
#[utoipa::path(
    post, path = "/api/v1/worker/acquire", tag = "worker", operation_id = "worker_acquire",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    request_body(content = serde_json::Value, description = "`{spec: {id, endpoint, name, labels}}`"),
    responses(
        (status = 200, description = "`{yours, worker}`", body = serde_json::Value),
        (status = 403, description = "The key lacks the scope `worker`", body = ErrorBody),
    ),
)]
pub(crate) async fn acquire(
    State(state): State<AppState>,
    sidecar: Sidecar,
    Said(said): Said<wire::Acquire>,
) -> ApiResult<Json<wire::Acquired>> {
    let WorkerSpec { id: _, endpoint, name: called, labels } = &said.spec;
    let texts = [("spec.endpoint", endpoint)].into_iter();
    let texts = texts.chain(called.iter().map(|text| ("spec.name", text)));
    for (field, text) in texts.chain(labels.iter().map(|text| ("spec.labels", text))) {
        printable(field, text)?;
    }
    let (yours, worker) = match state.store.acquire_worker(said.spec, sidecar.owner).await? {
        Acquired::Yes(worker) => (true, worker),
        Acquired::HeldBy(worker) => (false, worker),
    };
    Ok(Json(wire::Acquired { yours, worker }))
}

/// Let go of a worker
#[utoipa::path(
    post, path = "/api/v1/worker/release", tag = "worker", operation_id = "worker_release",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    request_body(content = serde_json::Value, description = "`{worker, fence}`"),
    responses(
        (status = 204, description = "It is free"),
        (status = 409, description = "It is another process's", body = ErrorBody),
    ),
)]
pub(crate) async fn release(
    State(state): State<AppState>,
    _: Sidecar,
    Said(said): Said<wire::Release>,
) -> ApiResult<StatusCode> {
    state.store.release_worker(&said.worker, said.fence).await.map_err(of_lease)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Keep what a worker's ComfyUI offers
///
/// Its `object_info`, under the hash of the text.
#[utoipa::path(
    put, path = "/api/v1/worker/object-info/{sha256}", tag = "worker", operation_id = "worker_object_info",
    params(
        ("sha256" = String, Path, description = "Of the body"),
        ("remuda-owner" = String, Header, description = "The process that asks", format = Uuid),
    ),
    request_body(content = serde_json::Value, description = "ComfyUI's `/object_info`"),
    responses(
        (status = 204, description = "Kept"),
        (status = 413, description = "It is larger than 64 MiB", body = ErrorBody),
        (status = 422, description = "The hash is another one", body = ErrorBody),
    ),
)]
pub(crate) async fn object_info(
    State(state): State<AppState>,
    _: Sidecar,
    ApiPath(sha256): ApiPath<String>,
    request: Request,
) -> ApiResult<StatusCode> {
    let sha256: Sha256 = sha256.parse()?;
    // Held while the text is in memory.
    let permit = state.permits.submission();
    let (parts, body) = request.into_parts();
    let limit = wire::LARGEST_OBJECT_INFO as u64;
    let (body, _permit) = read_body_with(&parts.headers, body, limit, state.limits.body_time, permit).await?;
    if Sha256::of(&body) != sha256 {
        return Err(ApiError::invalid("sha256", "the body has another SHA-256 than its path says"));
    }
    let json = std::str::from_utf8(&body).ok();
    let json = json.filter(|json| serde_json::from_str::<IgnoredAny>(json).is_ok());
    let json = json.ok_or_else(|| ApiError::bad_request("not_json", "the body is not JSON"))?;
    state.store.save_object_info(sha256, json).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Claim a task
///
/// Waits up to `wait_ms`, at most 25 s, for one that the worker can run. A claim whose client goes away is given back.
#[utoipa::path(
    post, path = "/api/v1/worker/claim", tag = "worker", operation_id = "worker_claim",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    request_body(
        content = serde_json::Value,
        description = "`{worker, worker_fence, capabilities: {labels, nodes, models}, loaded?, ahead?, wait_ms?}`"
    ),
    responses(
        (status = 200, description = "`{claim: {task, input, lease, adopted}}`", body = serde_json::Value),
        (status = 204, description = "Nothing came in time"),
        (status = 409, description = "The worker is another process's", body = ErrorBody),
    ),
)]
pub(crate) async fn claim(
    State(state): State<AppState>,
    sidecar: Sidecar,
    Said(said): Said<wire::Claim>,
) -> ApiResult<Response> {
    let _permit = state.permits.sidecar()?;
    let request = ClaimRequest {
        owner: sidecar.owner,
        worker: said.worker,
        worker_fence: said.worker_fence,
        capabilities: said.capabilities,
        loaded: said.loaded,
        ahead: said.ahead,
        gateway: gateway(&state),
        wait: wire::wait(said.wait_ms),
    };
    let claim = tokio::select! {
        // Dropping a claim gives back what it may have brought.
        () = state.stop.cancelled() => None,
        claim = state.store.claim(request) => claim.map_err(of_lease)?,
    };
    Ok(match claim.map(for_sidecars) {
        Some(claim) => Json(wire::Claimed { claim }).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Take over what runs on a worker
///
/// The caller's own leases that are not in `known`, and those of others that ran out.
#[utoipa::path(
    post, path = "/api/v1/worker/adopt", tag = "worker", operation_id = "worker_adopt",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    request_body(content = serde_json::Value, description = "`{worker, worker_fence, known?}`"),
    responses(
        (status = 200, description = "`{claims}`", body = serde_json::Value),
        (status = 409, description = "The worker is another process's", body = ErrorBody),
    ),
)]
pub(crate) async fn adopt(
    State(state): State<AppState>,
    sidecar: Sidecar,
    Said(said): Said<wire::Adopt>,
) -> ApiResult<Json<wire::Adopted>> {
    let request = AdoptRequest {
        owner: sidecar.owner,
        worker: said.worker,
        worker_fence: said.worker_fence,
        gateway: gateway(&state),
        known: said.known,
    };
    let claims = state.store.adopt(request).await.map_err(of_lease)?;
    Ok(Json(wire::Adopted { claims: claims.into_iter().map(for_sidecars).collect() }))
}

/// All leases on a worker
#[utoipa::path(
    get, path = "/api/v1/worker/leases", tag = "worker", operation_id = "worker_leases",
    params(
        ("worker" = String, Query, description = "The worker"),
        ("remuda-owner" = String, Header, description = "The process that asks", format = Uuid),
    ),
    responses((status = 200, description = "`{leases}`", body = serde_json::Value)),
)]
pub(crate) async fn leases(
    State(state): State<AppState>,
    _: Sidecar,
    ApiQuery(query): ApiQuery<wire::OfWorker>,
) -> ApiResult<Json<wire::Leases>> {
    Ok(Json(wire::Leases { leases: state.store.leases(&query.worker).await? }))
}

/// Renew leases and workers, and wait for news of them
///
/// Waits up to `wait_ms`, at most 25 s, for a cancellation, or for an idle worker that could start sooner what only waits.
#[utoipa::path(
    post, path = "/api/v1/worker/beat", tag = "worker", operation_id = "worker_beat",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    request_body(content = serde_json::Value, description = "`{leases?, workers?, wait_ms?}`"),
    responses((status = 200, description = "`{news, lost, lost_workers}`", body = serde_json::Value)),
)]
pub(crate) async fn beat(
    State(state): State<AppState>,
    sidecar: Sidecar,
    Said(said): Said<wire::Beat>,
) -> ApiResult<Json<BeatReply>> {
    let _permit = state.permits.sidecar()?;
    let wire::Beat { leases, workers, wait_ms } = said;
    let request = BeatRequest { owner: sidecar.owner, leases, workers, wait: wire::wait(wait_ms) };
    let reply = tokio::select! {
        // Whether it was renewed is not known: the sidecar asks another server.
        () = state.stop.cancelled() => return Err(StoreError::Closed.into()),
        reply = state.store.beat(request) => reply.map_err(of_lease)?,
    };
    for lease in &reply.lost {
        state.live.forget(&state.hub, lease.task);
    }
    Ok(Json(reply))
}

/// An attempt ended
///
/// The same report again gives the same answer. Files of a result must have been delivered under the same lease.
#[utoipa::path(
    post, path = "/api/v1/worker/end", tag = "worker", operation_id = "worker_end",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    request_body(content = serde_json::Value, description = "`{lease: {task, fence}, ending}`"),
    responses(
        (status = 200, description = "`{status, discarded, repeated}`", body = serde_json::Value),
        (status = 409, description = "The lease is another process's", body = ErrorBody),
        (status = 422, description = "The result names a file that is not its own", body = ErrorBody),
    ),
)]
pub(crate) async fn end(
    State(state): State<AppState>,
    _: Sidecar,
    Said(said): Said<wire::End>,
) -> ApiResult<Json<EndReply>> {
    let wire::End { lease, ending } = said;
    if let Some(result) = ending.result()
        && let Some(file) = result.files.iter().find(|file| !is_own(&file.key, lease))
    {
        return Err(foreign_file(&file.key));
    }
    let ending = within(ending, state.graph.output_files);
    let reply = state.store.end(lease, ending).await.map_err(of_lease)?;
    state.live.forget(&state.hub, lease.task);
    Ok(Json(reply))
}

/// An end whose result is not larger than a task may leave. A sidecar has limits of its own, and may not keep to them.
fn within(ending: Ending, most: usize) -> Ending {
    match ending.result().map(|result| result.files.len()) {
        Some(found) if found > most => {
            let message = format!(
                "its result was not taken: it names {found} files, and {most} are allowed (the limit is graph.output_files)"
            );
            Ending::Failed { failure: Failure::new(FailureClass::Delivery, message), partial: None }
        }
        _ => ending,
    }
}

/// Give a task back before ComfyUI began
///
/// `learnt` is what it needs and the worker lacks. When no known worker has it, the task fails.
#[utoipa::path(
    post, path = "/api/v1/worker/give-back", tag = "worker", operation_id = "worker_give_back",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    request_body(content = serde_json::Value, description = "`{lease: {task, fence}, learnt?}`"),
    responses(
        (status = 200, description = "`{status, discarded, repeated}`", body = serde_json::Value),
        (status = 409, description = "The lease is another process's", body = ErrorBody),
    ),
)]
pub(crate) async fn give_back(
    State(state): State<AppState>,
    _: Sidecar,
    Said(said): Said<wire::GiveBack>,
) -> ApiResult<Json<EndReply>> {
    let reply = state.preflight.give_back(said.lease, said.learnt).await.map_err(of_lease)?;
    state.live.forget(&state.hub, said.lease.task);
    Ok(Json(reply))
}

/// Live frames of what is claimed here can be had here.
fn gateway(state: &AppState) -> Option<String> {
    state.advertise.as_ref().map(ToString::to_string)
}

/// What the submitter keeps with its task is not for those who run it.
fn for_sidecars(mut claim: Claim) -> Claim {
    claim.task.metadata = None;
    claim
}

/// Whether a file was delivered under this lease: its key says so. Without this, a result could name any file there is.
fn is_own(key: &str, lease: LeaseRef) -> bool {
    let folder = FileKey::outputs_of(lease.task.0);
    let within = key.strip_prefix(folder.as_str()).and_then(|rest| rest.strip_prefix('/'));
    let attempt = within.and_then(|rest| rest.split_once('/')).map(|(attempt, _)| attempt);
    attempt
        .and_then(|attempt| attempt.split_once('-'))
        .is_some_and(|(_, fence)| fence == lease.fence.to_string())
}

#[cfg(test)]
mod tests {
    use remuda_core::{Fence, TaskId};

    use super::*;

    #[test]
    fn a_result_has_no_files_but_its_own() {
        let lease = LeaseRef { task: TaskId::new(), fence: Fence(12) };
        let key = |task: TaskId, fence| FileKey::output(task.0, 3, fence, 0, "a.png").to_string();
        assert!(is_own(&key(lease.task, 12), lease));
        assert!(!is_own(&key(lease.task, 1), lease), "delivered under an older lease");
        assert!(!is_own(&key(lease.task, 2), lease));
        assert!(!is_own(&key(TaskId::new(), 12), lease), "of another task");
        for key in ["", "assets/aa/aaaa", "outputs", &format!("outputs/{}", lease.task)] {
            assert!(!is_own(key, lease), "{key}");
        }
    }
}
