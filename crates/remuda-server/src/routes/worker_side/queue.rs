//! Workers, claims, beats and endings.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use comfyui::lenient::count_values;
use http::StatusCode;
use remuda_core::{Claim, Fence, Harmed, LeaseRef, OutputFile, Sha256, TaskInput, Worker, WorkerReport};
use remuda_pool::Work;
use remuda_preflight::MOST_SIDECAR_VALUES;
use remuda_sidecar as sidecar;
use remuda_store::{
    Acquired, AdoptRequest, BeatReply, BeatRequest, ClaimRequest, EndReply, Error as StoreError, Registrant,
};
use serde::de::IgnoredAny;

use super::bounds;
use super::deliveries::{is_own, is_stored};
use super::sidecar::{Said, Sidecar, current, foreign_file, of_lease};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::{ApiPath, ApiQuery, read_body_with};
use crate::share::{Held, PATIENCE, Visit};
use crate::state::AppState;
use crate::wire::printable;

/// From here on an answer is counted.
const LARGE: usize = 64 << 10;

/// About how many bytes are said of a file that must be at the worker first.
const PLACEMENT: usize = 256;

/// How long a process's words about an incident may be.
const LONGEST_WORD: usize = 200;

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
) -> ApiResult<Json<sidecar::Installation>> {
    let lease_ms = u64::try_from(state.lease.as_millis()).ok();
    Ok(Json(sidecar::Installation { id: state.installation().await?.id, lease_ms }))
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
        (status = 409, description = "The name is another key's, or the installation's own", body = ErrorBody),
        (status = 422, description = "A label is too long, or there are too many", body = ErrorBody),
        (status = 429, description = "The key has reached its limit of workers, or of their labels", body = ErrorBody),
    ),
)]
pub(crate) async fn acquire(
    State(state): State<AppState>,
    sidecar: Sidecar,
    Said(said): Said<sidecar::Acquire>,
) -> ApiResult<Json<sidecar::Acquired>> {
    bounds::spec(&said.spec)?;
    let most = state.limits.key_workers;
    let bytes = bounds::SPECS_OF_KEY;
    let by = Registrant { key: sidecar.key, tenant: sidecar.tenant.clone(), most, bytes };
    let acquired = state.store.register_worker(said.spec.clone(), sidecar.owner, by).await;
    let acquired = acquired.map_err(|error| match error {
        StoreError::TooMany { what: Registrant::LABELS } => {
            let error = format!("the workers of this key have {bytes} bytes of labels, names and endpoints");
            ApiError::over_limit("labels_of_key", error)
        }
        StoreError::TooMany { .. } => {
            let error = format!("this key has {most} workers, as many as one key may have");
            ApiError::over_limit("workers.max_per_key", error)
        }
        error => error.into(),
    })?;
    let (yours, worker) = match acquired {
        Acquired::Yes(worker) => {
            state.live.offers.registered(&worker.spec.id, worker.fence, worker.spec.labels.clone());
            (true, Worker { owner: sidecar.shown(worker.owner), ..worker })
        }
        // That it is held is all that another process needs to know.
        Acquired::HeldBy(worker) => {
            let owner = sidecar.shown(worker.owner);
            let report = WorkerReport::default();
            (false, Worker { spec: said.spec, report, owner, fence: Fence::default(), ..worker })
        }
    };
    Ok(Json(sidecar::Acquired { yours, worker }))
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
    sidecar: Sidecar,
    Said(said): Said<sidecar::Release>,
) -> ApiResult<StatusCode> {
    state.store.release_worker(sidecar.owner, &said.worker, said.fence).await.map_err(of_lease)?;
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
        (status = 422, description = "The hash is another one, or it holds more than 500,000 JSON values", body = ErrorBody),
        (status = 429, description = "The key has reached its limit", body = ErrorBody),
    ),
)]
pub(crate) async fn object_info(
    State(state): State<AppState>,
    sidecar: Sidecar,
    ApiPath(sha256): ApiPath<String>,
    request: Request,
) -> ApiResult<StatusCode> {
    let sha256: Sha256 = sha256.parse()?;
    // Held while the text is in memory.
    let permit = state.permits.submission();
    let (parts, body) = request.into_parts();
    let limit = sidecar::LARGEST_OBJECT_INFO as u64;
    let (body, permit) = read_body_with(&parts.headers, body, limit, state.limits.body_time, permit).await?;
    // Sidecars take turns as tenants do, and are not refused: their number is bounded by the permits.
    let work = Work::new("checking an object_info", sidecar.key.to_string(), body.len())
        .patient()
        .holding(permit.held());
    let json = state.pool.run(work, move || described(sha256, &body)).await.map_err(ApiError::from)??;
    let bounds = state.limits.key_descriptions;
    let kept = state.store.bring_object_info(sha256, &json, sidecar.key, bounds).await;
    kept.map_err(|error| match error {
        StoreError::TooMany { .. } => {
            let error = "the workers of this key describe more nodes than one key may keep";
            ApiError::over_limit("workers.max_object_infos", error)
        }
        error => error.into(),
    })?;
    Ok(StatusCode::NO_CONTENT)
}

/// The text of an `object_info` that is what its hash says.
fn described(sha256: Sha256, body: &[u8]) -> ApiResult<String> {
    if Sha256::of(body) != sha256 {
        return Err(ApiError::invalid("sha256", "the body has another SHA-256 than its path says"));
    }
    if count_values(body, usize::MAX) > MOST_SIDECAR_VALUES {
        let error = format!("the description holds more than {MOST_SIDECAR_VALUES} JSON values");
        return Err(ApiError::invalid("body", error));
    }
    let json = std::str::from_utf8(body).ok();
    let json = json.filter(|json| serde_json::from_str::<IgnoredAny>(json).is_ok());
    json.map(str::to_owned).ok_or_else(|| ApiError::bad_request("not_json", "the body is not JSON"))
}

/// Claim a task
///
/// Waits up to `wait_ms`, at most 25 s, for one that the worker can run. A claim whose client goes away is given back. Only
/// one claim of a worker waits, and one more with `ahead`: a newer one answers the older with 204. The worker has the labels
/// that it was registered with, whatever the claim says. Of `loaded` the first 64 count.
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
    Said(said): Said<sidecar::Claim>,
) -> ApiResult<Response> {
    let _permit = state.permits.sidecar()?;
    bounds::offer(&said.capabilities)?;
    let offers = &state.live.offers;
    let offer = offers.take_up(&state, &said.worker, said.worker_fence, said.capabilities).await?;
    let request = ClaimRequest {
        owner: sidecar.owner,
        worker: said.worker,
        worker_fence: said.worker_fence,
        capabilities: Arc::clone(&offer.capabilities),
        loaded: said.loaded,
        ahead: said.ahead,
        gateway: gateway(&state),
        wait: sidecar::wait(said.wait_ms),
    };
    let claim = tokio::select! {
        // Dropping a claim gives back what it may have brought.
        () = state.stop.cancelled() => None,
        claim = state.store.claim(request) => claim.map_err(of_lease)?,
    };
    Ok(match claim.map(|claim| shown(claim, &sidecar)) {
        Some(claim) => Json(sidecar::Claimed { claim }).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Take over what runs on a worker
///
/// The caller's own leases that are not in `known`, and those of others that ran out. An answer has at
/// most 8 MiB of graphs, but at least one lease: ask again, with those that you have in `known`, until none comes.
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
    Said(said): Said<sidecar::Adopt>,
) -> ApiResult<Response> {
    bounds::listed("known", said.known.len(), bounds::LISTED)?;
    let request = AdoptRequest {
        owner: sidecar.owner,
        worker: said.worker,
        worker_fence: said.worker_fence,
        gateway: gateway(&state),
        known: said.known,
    };
    let reading = state.permits.read().await?;
    let claims = state.store.adopt(request).await.map_err(of_lease)?;
    let size: usize = claims.iter().map(|claim| size_of_input(&claim.input)).sum();
    // Whoever hears that there is no room asks again, and they are still its own.
    let pass = match size {
        0..LARGE => None,
        _ => {
            let waited = state.memory.wait(&Visit::guest(), size as u64, PATIENCE).await;
            Some(waited.map_err(|_| ApiError::no_memory())?)
        }
    };
    let claims = claims.into_iter().map(|claim| shown(claim, &sidecar)).collect();
    let answer = Json(sidecar::Adopted { claims }).into_response();
    // Only now is it there once, and not as claims and as text.
    drop(reading);
    Ok(answer.map(|body| Held::wrap(body, pass)))
}

/// All leases on a worker that the caller holds
#[utoipa::path(
    get, path = "/api/v1/worker/leases", tag = "worker", operation_id = "worker_leases",
    params(
        ("worker" = String, Query, description = "The worker"),
        ("remuda-owner" = String, Header, description = "The process that asks", format = Uuid),
    ),
    responses(
        (status = 200, description = "`{leases}`", body = serde_json::Value),
        (status = 409, description = "The worker is another process's", body = ErrorBody),
    ),
)]
pub(crate) async fn leases(
    State(state): State<AppState>,
    sidecar: Sidecar,
    ApiQuery(query): ApiQuery<sidecar::OfWorker>,
) -> ApiResult<Json<sidecar::Leases>> {
    let mut leases = state.store.leases_for(sidecar.owner, &query.worker).await.map_err(of_lease)?;
    leases.iter_mut().for_each(|lease| lease.owner = sidecar.shown(lease.owner));
    Ok(Json(sidecar::Leases { leases }))
}

/// Renew leases and workers, and wait for news of them
///
/// Waits up to `wait_ms`, at most 25 s, for a cancellation, or for an idle worker that could start a waiting task
/// sooner. Only one beat of a process waits: a newer one answers it with what is known.
#[utoipa::path(
    post, path = "/api/v1/worker/beat", tag = "worker", operation_id = "worker_beat",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    request_body(content = serde_json::Value, description = "`{leases?, workers?, wait_ms?}`"),
    responses((status = 200, description = "`{news, lost, lost_workers}`", body = serde_json::Value)),
)]
pub(crate) async fn beat(
    State(state): State<AppState>,
    sidecar: Sidecar,
    Said(said): Said<sidecar::Beat>,
) -> ApiResult<Json<BeatReply>> {
    let _permit = state.permits.sidecar()?;
    bounds::beat(&said, state.limits.key_workers)?;
    let sidecar::Beat { leases, mut workers, wait_ms } = said;
    workers.iter_mut().for_each(|worker| bounds::report(&mut worker.report));
    let request = BeatRequest { owner: sidecar.owner, leases, workers, wait: sidecar::wait(wait_ms) };
    let reply = tokio::select! {
        // Whether it was renewed is not known: the sidecar asks another server.
        () = state.stop.cancelled() => return Err(StoreError::Closed.into()),
        reply = state.store.beat(request) => reply.map_err(of_lease)?,
    };
    for lease in &reply.lost {
        // A stranger's word does not end what readers follow, nor forget what the holder delivered.
        state.live.lost(&state.hub, lease.task, sidecar.owner);
        state.live.deliveries.lost(*lease, sidecar.owner);
    }
    Ok(Json(reply))
}

/// Report how an attempt ended
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
    sidecar: Sidecar,
    Said(said): Said<sidecar::End>,
) -> ApiResult<Json<EndReply>> {
    let sidecar::End { lease, ending } = said;
    if let Some(result) = ending.result() {
        check_files(&state, &sidecar, lease, &result.files).await?;
    }
    let reply = state.store.end(sidecar.owner, lease, ending).await.map_err(of_lease)?;
    state.live.forget(&state.hub, lease.task);
    state.live.deliveries.forget(lease);
    Ok(Json(reply))
}

/// Report that work on a task's graph harmed the process
///
/// The process died during the work, or the work did not end. Only the holder of the lease may report it, and the same
/// incident counts once. With the second one the task fails with the class `harmful`, and the lease is gone.
#[utoipa::path(
    post, path = "/api/v1/worker/harm", tag = "worker", operation_id = "worker_harm",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    request_body(
        content = serde_json::Value,
        description = "`{lease: {task, fence}, harm: {kind: \"death\"|\"stall\", work, process, at}}`"
    ),
    responses(
        (status = 200, description = "`{count, set_aside}`", body = serde_json::Value),
        (status = 409, description = "The lease is another process's", body = ErrorBody),
        (status = 422, description = "A text is too long", body = ErrorBody),
    ),
)]
pub(crate) async fn harm(
    State(state): State<AppState>,
    sidecar: Sidecar,
    Said(said): Said<sidecar::Harm>,
) -> ApiResult<Json<Harmed>> {
    let sidecar::Harm { lease, harm } = said;
    for (field, text) in [("harm.work", &harm.work), ("harm.process", &harm.process)] {
        printable(field, text)?;
        if text.len() > LONGEST_WORD {
            return Err(ApiError::invalid(field, format!("{field} has more than {LONGEST_WORD} bytes")));
        }
    }
    let holder = Some((sidecar.owner, lease.fence));
    let harmed = state.store.note_harm(lease.task, holder, harm).await.map_err(of_lease)?;
    if harmed.set_aside {
        state.live.forget(&state.hub, lease.task);
    }
    Ok(Json(harmed))
}

/// The files of a result must be those that were delivered under its lease, as they were.
async fn check_files(
    state: &AppState,
    sidecar: &Sidecar,
    lease: LeaseRef,
    files: &[OutputFile],
) -> ApiResult<()> {
    if let Some(file) = files.iter().find(|file| !is_own(&file.key, lease)) {
        return Err(foreign_file(&file.key));
    }
    let unknown = state.live.deliveries.unknown(lease, files);
    // A report that is repeated, or comes too late, changes nothing: the store has the answer, and the files may be gone.
    if unknown.is_empty() || current(state, sidecar, lease).await.is_err() {
        return Ok(());
    }
    for file in unknown.into_iter().filter_map(|n| files.get(n)) {
        if !is_stored(&state.files, file).await? {
            return Err(foreign_file(&file.key));
        }
    }
    Ok(())
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
    sidecar: Sidecar,
    Said(said): Said<sidecar::GiveBack>,
) -> ApiResult<Json<EndReply>> {
    let learnt = match said.learnt {
        Some(learnt) => {
            current(&state, &sidecar, said.lease).await?;
            let _reading = state.permits.read().await?;
            let input = state.store.input(said.lease.task).await.map_err(of_lease)?;
            let workflow = input.ok_or(StoreError::Fenced)?.workflow;
            let (size, task) = (workflow.get().len(), said.lease.task);
            let find = move || bounds::learnt(learnt, &workflow);
            Some(state.compute_of("reading what a task needs", &sidecar.tenant, task, size, find).await??)
        }
        None => None,
    };
    let reply = state.preflight.give_back(sidecar.owner, said.lease, learnt).await.map_err(of_lease)?;
    state.live.deliveries.forget(said.lease);
    state.live.forget(&state.hub, said.lease.task);
    Ok(Json(reply))
}

/// Live frames of what is claimed here can be had here.
fn gateway(state: &AppState) -> Option<String> {
    state.advertise.as_ref().map(ToString::to_string)
}

/// About how many bytes a task's input takes.
fn size_of_input(input: &TaskInput) -> usize {
    let extra = input.extra.as_ref().and_then(|extra| extra.extra_data.as_ref());
    input.workflow.get().len()
        + extra.map_or(0, |extra| extra.get().len())
        + input.placements.len() * PLACEMENT
}

/// What the submitter keeps with its task is not for those who run it.
fn shown(mut claim: Claim, sidecar: &Sidecar) -> Claim {
    claim.task.metadata = None;
    claim.lease.owner = sidecar.shown(claim.lease.owner);
    claim
}
