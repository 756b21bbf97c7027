//! `GET /api/v1/workers`, `/api/v1/workers/metrics` and `/api/v1/workers/{id}`.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header;
use jiff::Timestamp;
use remuda_core::{Health, Phase, TaskId, Worker, WorkerStatus};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::{Caller, ReadCaller};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::ApiPath;
use crate::share::{Held, Visit};
use crate::state::AppState;
use crate::wire::{WorkerList, WorkerView, status_of};

/// A list of workers never counts for more: those from before there was a bound may be longer, and can be read.
const MOST_COUNTED: u64 = 32 << 20;

/// How many workers are in which state.
#[derive(Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct WorkerMetrics {
    total_workers: i64,
    idle_workers: i64,
    running_workers: i64,
    starting_workers: i64,
    failed_workers: i64,
}

/// All workers.
#[utoipa::path(
    get, path = "/api/v1/workers", tag = "workers",
    responses((status = 200, description = "All workers, by name", body = WorkerList)),
)]
pub(crate) async fn list(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
) -> ApiResult<Response> {
    // Who is busy with what is looked up for each of them.
    let _turn = state.permits.list().await?;
    let mut workers = Vec::new();
    let found = workers_now(&state).await?;
    let bytes: usize = found.iter().map(said).sum();
    // The workers, and the text that is made of them.
    let pass = state.memory.take(&Visit::guest(), (2 * bytes as u64).min(MOST_COUNTED));
    let pass = pass.map_err(|_| ApiError::no_memory())?;
    for worker in found {
        workers.push(view(&state, &caller, worker).await?);
    }
    let list = WorkerList { workers };
    let write = move || serde_json::to_vec(&list);
    let text = state.compute("listing workers", &caller.tenant, bytes, write).await?;
    let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
    let answer = ([(header::CONTENT_TYPE, "application/json")], text).into_response();
    Ok(answer.map(|body| Held::wrap(body, pass)))
}

/// About how many bytes are said of a worker.
fn said(worker: &Worker) -> usize {
    let report = &worker.report;
    let texts = [&report.reason, &report.comfyui_version, &report.device, &report.identity];
    let texts = texts.into_iter().flatten().map(String::len).sum::<usize>();
    worker.spec.bytes() + texts + 512
}

/// One worker.
#[utoipa::path(
    get, path = "/api/v1/workers/{id}", tag = "workers",
    params(("id" = String, Path, description = "The worker")),
    responses(
        (status = 200, description = "The worker", body = WorkerView),
        (status = 404, description = "No such worker", body = ErrorBody),
    ),
)]
pub(crate) async fn get(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiPath(id): ApiPath<String>,
) -> ApiResult<Json<WorkerView>> {
    let _turn = state.permits.list().await?;
    let workers = workers_now(&state).await?;
    let worker = workers.into_iter().find(|worker| worker.spec.id.as_str() == id);
    let worker = worker.ok_or_else(|| ApiError::not_found("worker", &id))?;
    Ok(Json(view(&state, &caller, worker).await?))
}

/// How many workers are in which state.
#[utoipa::path(
    get, path = "/api/v1/workers/metrics", tag = "workers",
    responses((status = 200, description = "The numbers", body = WorkerMetrics)),
)]
pub(crate) async fn metrics(
    State(state): State<AppState>,
    ReadCaller(_caller): ReadCaller,
) -> ApiResult<Json<WorkerMetrics>> {
    let now = Timestamp::now();
    let _turn = state.permits.list().await?;
    let workers = workers_now(&state).await?;
    let mut metrics = WorkerMetrics {
        total_workers: i64::try_from(workers.len()).unwrap_or(i64::MAX),
        ..WorkerMetrics::default()
    };
    for worker in &workers {
        match status_of(worker, now).0 {
            WorkerStatus::Idle => metrics.idle_workers += 1,
            WorkerStatus::Running => metrics.running_workers += 1,
            WorkerStatus::Pending | WorkerStatus::Starting => metrics.starting_workers += 1,
            WorkerStatus::Error => metrics.failed_workers += 1,
            WorkerStatus::Stopped => {}
        }
    }
    Ok(Json(metrics))
}

/// All workers as they are at this moment. Reports come every few seconds; leases come and go with the tasks, so they say
/// better who is busy with what.
pub(crate) async fn workers_now(state: &AppState) -> ApiResult<Vec<Worker>> {
    let mut workers = Arc::unwrap_or_clone(state.store.workers().await?);
    for worker in workers.iter_mut().filter(|worker| worker.report.health.is_usable()) {
        let leases = state.store.leases(&worker.spec.id).await?;
        let current = leases.iter().filter(|lease| lease.phase != Phase::Collecting).min_by_key(|lease| {
            // What was sent ahead waits behind the one at work.
            (lease.phase == Phase::Ahead, Reverse(lease.phase))
        });
        worker.report.current_task = current.map(|lease| lease.task);
        worker.report.health = if current.is_some() { Health::Busy } else { Health::Healthy };
    }
    Ok(workers)
}

async fn view(state: &AppState, caller: &Caller, worker: Worker) -> ApiResult<WorkerView> {
    let current = worker.report.current_task;
    let mut view = WorkerView::new(worker, Timestamp::now());
    if let Some(task) = current
        && !may_see(state, caller, task).await?
    {
        view.current_task_id = None;
    }
    Ok(if caller.is_admin() { view } else { view.without_address() })
}

/// Workers are everybody's, and what they render is its tenant's.
async fn may_see(state: &AppState, caller: &Caller, task: TaskId) -> ApiResult<bool> {
    if caller.is_admin() {
        return Ok(true);
    }
    Ok(state.store.task(task).await?.is_some_and(|task| caller.sees(&task.tenant)))
}
