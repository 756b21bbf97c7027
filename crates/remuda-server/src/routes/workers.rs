//! `GET /api/v1/workers`, `/api/v1/workers/metrics` and `/api/v1/workers/{id}`.

use std::cmp::Reverse;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use remuda_core::{Health, Phase, TaskId, Worker, WorkerStatus};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::{Caller, ReadCaller};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::ApiPath;
use crate::state::AppState;
use crate::wire::{WorkerList, WorkerView, status_of};

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
) -> ApiResult<Json<WorkerList>> {
    let mut workers = Vec::new();
    for worker in workers_now(&state).await? {
        workers.push(view(&state, &caller, worker).await?);
    }
    Ok(Json(WorkerList { workers }))
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
    let mut workers = state.store.workers().await?;
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
