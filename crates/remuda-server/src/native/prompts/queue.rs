//! `/queue`, and `GET /prompt`: what waits and what runs.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use comfyui::lenient::count_values;
use futures_util::StreamExt as _;
use futures_util::stream;
use http::StatusCode;
use remuda_core::{Dialect, Phase, Status, Task, TaskInput, Timestamp};
use remuda_store::{Glance, Hide, OriginOrder};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::entry::Item;
use super::list::{fixed, json as streamed, of, separated, written};
use super::request::is_true;
use super::{NativeError, find};
use crate::access::{Caller, ReadCaller, SubmitCaller};
use crate::extract::SmallBody;
use crate::service::{self, ServiceError};
use crate::share::Visit;
use crate::state::AppState;

/// How many of those that wait are listed. `GET /prompt` counts all of them.
const MOST_PENDING: u32 = 1000;

/// How many of those that run are listed.
const MOST_RUNNING: u32 = 1000;

/// How many are cancelled at once.
const AT_ONCE: usize = 64;

/// How long a worker may take to let go of a prompt that waits there.
const LET_GO: Duration = Duration::from_secs(5);

/// How many are looked at together when the queue is cleared.
const PAGE: u32 = 512;

/// How many ids can be named in one request.
const MOST_IDS: usize = 10_000;

/// `GET /prompt`.
pub(super) async fn remaining(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
) -> Result<Json<Value>, NativeError> {
    let count = service::unfinished(&state, &caller.tenant, Dialect::COMFYUI).await?;
    Ok(Json(json!({"exec_info": {"queue_remaining": count}})))
}

/// `GET /queue`.
pub(super) async fn show(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
) -> Result<Response, NativeError> {
    let permit = state.permits.download()?;
    let order = OriginOrder::OldestFirst;
    // What waits first: a prompt that starts in between is then in both lists rather than in none.
    let pending =
        service::list_origin(&state, &of(&caller.tenant, &[Status::Pending], order, MOST_PENDING)).await?;
    let running =
        service::list_origin(&state, &of(&caller.tenant, &[Status::Running], order, MOST_RUNNING)).await?;
    let started: std::collections::HashSet<_> = running.tasks.iter().map(|task| task.id).collect();
    let pending = pending.tasks.into_iter().filter(|task| !started.contains(&task.id));
    let (running, behind) = apart(&state, running.tasks).await?;
    let pending: Vec<Task> = behind.into_iter().chain(pending).collect();
    let pieces = fixed("{\"queue_running\":[")
        .chain(separated(written(&state, Visit::guest(), running, item)))
        .chain(fixed("],\"queue_pending\":["))
        .chain(separated(written(&state, Visit::guest(), pending, item)))
        .chain(fixed("]}"))
        .inspect(move |_| {
            let _ = &permit;
        });
    Ok(streamed(pieces))
}

/// Tasks that ComfyUI works on, and those that a worker has and that wait there behind another.
async fn apart(state: &AppState, tasks: Vec<Task>) -> Result<(Vec<Task>, Vec<Task>), NativeError> {
    let looks = stream::iter(tasks).map(|task| async move {
        let waits = waits_at_its_worker(state, &task).await?;
        Ok::<_, NativeError>((task, waits))
    });
    let (mut running, mut behind) = (Vec::new(), Vec::new());
    let mut looks = looks.buffered(AT_ONCE);
    while let Some(looked) = looks.next().await {
        let (task, waits) = looked?;
        if waits { behind.push(task) } else { running.push(task) }
    }
    Ok((running, behind))
}

/// Whether a running task is only in the queue of its worker, for its client no different from one that waits here. How far
/// it is comes to the store with a beat, and to this process at once; of tasks at other gateways it is not known.
async fn waits_at_its_worker(state: &AppState, task: &Task) -> Result<bool, NativeError> {
    let Some(lease) = service::lease(state, task.id).await? else { return Ok(false) };
    let here = state.is_here(lease.gateway.as_deref());
    let sent = matches!(lease.phase, Phase::Placing | Phase::Ahead | Phase::Submitted);
    let begun = lease.rendering_since.is_some() || state.hub.has_messages(task.id, lease.attempt);
    Ok(here && sent && !begun)
}

fn item(task: &Task, input: TaskInput) -> Option<serde_json::Result<String>> {
    Some(serde_json::to_string(&Item::new(task, input)))
}

/// What is to go, as it came.
#[derive(Debug, Deserialize)]
struct Wish<'a> {
    #[serde(borrow, default)]
    clear: Option<&'a RawValue>,
    #[serde(borrow, default)]
    delete: Option<&'a RawValue>,
}

/// What is to go.
#[derive(Debug)]
pub(super) struct Removal {
    pub(super) clears: bool,
    pub(super) ids: Vec<String>,
}

impl Removal {
    pub(super) async fn read(state: &AppState, caller: &Caller, body: Bytes) -> Result<Self, NativeError> {
        let size = body.len();
        state.compute("reading ids", &caller.tenant, size, move || Self::of(&body)).await?
    }

    fn of(body: &[u8]) -> Result<Self, NativeError> {
        let bad =
            |details: String| NativeError::refused("invalid_request", "The request cannot be read", details);
        let wish: Wish<'_> = serde_json::from_slice(body).map_err(|error| bad(error.to_string()))?;
        let ids = match wish.delete.filter(|ids| ids.get().starts_with('[')) {
            Some(ids) => {
                let listed = listed(ids);
                listed.ok_or_else(|| bad(format!("delete names more than {MOST_IDS} prompts")))?
            }
            None => Vec::new(),
        };
        let ids = ids.into_iter().filter_map(|id| serde_json::from_str(id.get()).ok()).collect();
        Ok(Self { clears: wish.clear.is_some_and(is_true), ids })
    }
}

/// The members of a list, if it is one and names no more than can be named. None of them is made before they are counted.
pub(super) fn listed(list: &RawValue) -> Option<Vec<&RawValue>> {
    if count_values(list.get().as_bytes(), 1) > MOST_IDS + 1 {
        return None;
    }
    serde_json::from_str(list.get()).ok()
}

/// `POST /queue`: takes prompts out that wait. What runs stays, as does what is not there.
pub(super) async fn remove(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    SmallBody(body): SmallBody,
) -> Result<StatusCode, NativeError> {
    let removal = Removal::read(&state, &caller, body).await?;
    if removal.clears {
        clear(&state, &caller).await?;
    }
    let mut waiting = Vec::new();
    for id in &removal.ids {
        let Some(task) = find(&state, &caller.tenant, id).await? else { continue };
        let waits = match task.status {
            Status::Pending => true,
            Status::Running => waits_at_its_worker(&state, &task).await?,
            Status::Completed | Status::Failed | Status::Cancelled => false,
        };
        waiting.extend(waits.then_some(task));
    }
    withdraw(&state, &caller, waiting).await?;
    Ok(StatusCode::OK)
}

/// Cancels everything that waits now.
async fn clear(state: &AppState, caller: &Caller) -> Result<(), NativeError> {
    let now = Timestamp::now();
    loop {
        let query = of(&caller.tenant, &[Status::Pending], OriginOrder::OldestFirst, PAGE);
        let page = service::list_origin(state, &query).await?.tasks;
        // What came in since is not meant.
        let meant: Vec<Task> = page.into_iter().filter(|task| task.created_at <= now).collect();
        if meant.is_empty() {
            break;
        }
        withdraw(state, caller, meant).await?;
    }
    // Last: what waits at a worker makes room there for what waits here.
    let query = of(&caller.tenant, &[Status::Running], OriginOrder::OldestFirst, MOST_RUNNING);
    let tasks = service::list_origin(state, &query).await?.tasks;
    let meant = tasks.into_iter().filter(|task| task.created_at <= now).collect();
    let (_, behind) = apart(state, meant).await?;
    withdraw(state, caller, behind).await
}

/// Cancels tasks that wait, and takes them out of the lists: such a prompt leaves no trace.
async fn withdraw(state: &AppState, caller: &Caller, tasks: Vec<Task>) -> Result<(), NativeError> {
    let cancelled = stream::iter(tasks).map(|task| async move {
        // Followed before it is cancelled: its end may come at once.
        let follow = state.changes.follow(task.id);
        (follow, service::stop(state, task.id).await)
    });
    let mut cancelled = cancelled.buffer_unordered(AT_ONCE);
    let (mut gone, mut going) = (Vec::new(), Vec::new());
    while let Some((follow, answer)) = cancelled.next().await {
        match answer {
            Ok(Some(Glance { task, .. })) if task.status == Status::Cancelled => gone.push(task.id),
            // A worker has it, and must let it go first.
            Ok(Some(seen)) => going.push((follow, seen)),
            // It ended just before.
            Ok(None) | Err(ServiceError::NoTask(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let ended = going
        .into_iter()
        .map(|(follow, seen)| async move { service::for_end(state, seen, follow, LET_GO).await });
    for Glance { task, .. } in futures_util::future::try_join_all(ended).await? {
        gone.extend((task.status == Status::Cancelled).then_some(task.id));
    }
    if !gone.is_empty() {
        service::hide(state, &caller.tenant, Dialect::COMFYUI, Hide::Tasks(gone)).await?;
    }
    Ok(())
}

/// Cancels one prompt, wherever it is; whether there was anything to cancel.
pub(super) async fn cancel(state: &AppState, caller: &Caller, task: Task) -> Result<bool, NativeError> {
    match task.status {
        Status::Pending => withdraw(state, caller, vec![task]).await.map(|()| true),
        Status::Running => Ok(service::stop(state, task.id).await?.is_some()),
        Status::Completed | Status::Failed | Status::Cancelled => Ok(false),
    }
}

/// An answer with nothing in it.
pub(super) fn done() -> Response {
    StatusCode::OK.into_response()
}
