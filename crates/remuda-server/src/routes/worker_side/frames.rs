//! Live frames from sidecars.
//!
//! Readers look for the frames of a task at the server that its lease names: the one at which it was claimed. Behind a load
//! balancer the frames may come in at another, which passes them on.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use axum::extract::{Request, State};
use http::{StatusCode, header};
use remuda_core::OwnerId;
use remuda_frames::Frame;
use remuda_pool::Work;
use remuda_sidecar as sidecar;
use url::Url;

use super::sidecar::{Sidecar, owner};
use crate::access::ClusterCaller;
use crate::compute::held;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::read_body;
use crate::state::AppState;

/// From how many tasks frames are taken in one body.
const MOST_TASKS: usize = 256;

/// A server that does not take frames within this time does not get them.
const PATIENCE: Duration = Duration::from_secs(2);

/// Live frames of running tasks
///
/// Progress, previews and messages of ComfyUI, several in one body: each is the length of its head (4 bytes, highest
/// first), the head `{task, attempt, what, payload}` as JSON, and `payload` bytes of picture or message; at most 4,096.
/// Frames of tasks that are not the caller's are dropped.
#[utoipa::path(
    post, path = "/api/v1/worker/frames", tag = "worker", operation_id = "worker_frames",
    params(("remuda-owner" = String, Header, description = "The process that asks", format = Uuid)),
    request_body(content = Vec<u8>, content_type = "application/vnd.remuda.frames"),
    responses(
        (status = 204, description = "Passed on, as far as somebody follows"),
        (status = 400, description = "They cannot be read", body = ErrorBody),
        (status = 413, description = "More than 32 MiB", body = ErrorBody),
    ),
)]
pub(crate) async fn frames(
    State(state): State<AppState>,
    sidecar: Sidecar,
    request: Request,
) -> ApiResult<StatusCode> {
    let mut elsewhere: BTreeMap<String, Vec<Frame>> = BTreeMap::new();
    for (frame, gateway) in current(&state, sidecar.owner, request).await? {
        match gateway.filter(|gateway| !is_here(&state, gateway)) {
            Some(gateway) => elsewhere.entry(gateway).or_default().push(frame),
            None => state.hub.publish(frame),
        }
    }
    for (gateway, frames) in elsewhere {
        if let Err(error) = pass_on(&state, sidecar.owner, &gateway, &frames).await {
            tracing::debug!(gateway, error, "live frames stay here");
            frames.into_iter().for_each(|frame| state.hub.publish(frame));
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /internal/v1/frames`: frames that came in at another server of the installation.
pub(crate) async fn passed_on(
    State(state): State<AppState>,
    _caller: ClusterCaller,
    request: Request,
) -> ApiResult<StatusCode> {
    let owner = owner(request.headers())?;
    for (frame, _) in current(&state, owner, request).await? {
        state.hub.publish(frame);
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The frames of tasks that the sidecar holds, each with the place where readers look for it.
async fn current(
    state: &AppState,
    owner: OwnerId,
    request: Request,
) -> ApiResult<Vec<(Frame, Option<String>)>> {
    let (parts, body) = request.into_parts();
    let limit = sidecar::frames::LARGEST as u64;
    let body = read_body(&parts.headers, body, limit, state.limits.body_time).await?;
    let work = Work::new("reading live frames", owner.to_string(), body.len()).patient().holding(held());
    let frames = state.pool.run(work, move || sidecar::frames::decode(body)).await.map_err(ApiError::from)?;
    let frames = frames.map_err(|error| ApiError::bad_request("bad_frames", error.to_string()))?;
    state.live.sweep(&state.hub);
    let mut current = Vec::new();
    let mut tasks = HashSet::new();
    for frame in frames {
        // Each task costs a look at its lease; frames of more tasks than a process has at a time are not looked at.
        if !tasks.contains(&frame.task) && tasks.len() >= MOST_TASKS {
            continue;
        }
        tasks.insert(frame.task);
        if let Some(holder) = state.live.holder(&*state.store, frame.task).await
            && holder.owner == owner
            && holder.attempt == frame.attempt
        {
            current.push((frame, holder.gateway));
        }
    }
    Ok(current)
}

fn is_here(state: &AppState, gateway: &str) -> bool {
    let here = state.advertise.as_ref().map(Url::as_str);
    here.is_some_and(|here| here.trim_end_matches('/') == gateway.trim_end_matches('/'))
}

async fn pass_on(state: &AppState, owner: OwnerId, gateway: &str, frames: &[Frame]) -> Result<(), String> {
    let mut url = Url::parse(gateway).map_err(|error| error.to_string())?;
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(["internal", "v1", "frames"]);
    }
    let installation = state.installation().await.map_err(|error| error.to_string())?;
    let mut rest = frames;
    while !rest.is_empty() {
        let (body, taken) = sidecar::frames::encode(rest);
        rest = rest.get(taken.max(1)..).unwrap_or_default();
        let request = state
            .live
            .client()?
            .post(url.clone())
            .timeout(PATIENCE)
            .bearer_auth(&installation.cluster_key)
            .header(sidecar::OWNER, owner.to_string())
            .header(header::CONTENT_TYPE, sidecar::frames::MIME)
            .body(body);
        let answer = request.send().await.and_then(reqwest::Response::error_for_status);
        answer.map_err(|error| error.to_string())?;
    }
    Ok(())
}
