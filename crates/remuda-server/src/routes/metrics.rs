//! `GET /api/v1/queue/metrics`, for people, and `/metrics`, for Prometheus.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use jiff::Timestamp;
use remuda_core::WorkerStatus;
use serde::Serialize;
use utoipa::ToSchema;

use super::workers::workers_now;
use crate::access::{AdminCaller, ReadCaller};
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;
use crate::wire::status_of;

/// How many tasks are in which state: yours, or all with the scope admin.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueMetrics {
    pending_tasks: i64,
    running_tasks: i64,
    completed_tasks: i64,
    failed_tasks: i64,
}

/// How many tasks are in which state.
#[utoipa::path(
    get, path = "/api/v1/queue/metrics", tag = "tasks",
    responses((status = 200, description = "The numbers", body = QueueMetrics)),
)]
pub(crate) async fn queue(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
) -> ApiResult<Json<QueueMetrics>> {
    let tenant = (!caller.is_admin()).then_some(&caller.tenant);
    let counts = state.store.counts(tenant).await?;
    Ok(Json(QueueMetrics {
        pending_tasks: counts.pending,
        running_tasks: counts.running,
        completed_tasks: counts.completed,
        failed_tasks: counts.failed,
    }))
}

/// All metrics, for Prometheus. Needs the scope admin.
#[utoipa::path(
    get, path = "/metrics", tag = "service",
    responses((status = 200, description = "Prometheus' text format", body = String, content_type = "application/openmetrics-text")),
)]
pub(crate) async fn prometheus(
    State(state): State<AppState>,
    AdminCaller(_caller): AdminCaller,
) -> ApiResult<Response> {
    let counts = state.store.counts(None).await?;
    let now = Timestamp::now();
    let workers = workers_now(&state).await?;
    let count = |wanted: WorkerStatus| {
        let number = workers.iter().filter(|worker| status_of(worker, now).0 == wanted).count();
        i64::try_from(number).unwrap_or(i64::MAX)
    };
    let by_status = [
        ("idle", count(WorkerStatus::Idle)),
        ("running", count(WorkerStatus::Running)),
        ("starting", count(WorkerStatus::Starting)),
        ("stopped", count(WorkerStatus::Stopped)),
        ("error", count(WorkerStatus::Error)),
    ];
    let text =
        state.metrics.text(counts, &by_status).map_err(|error| ApiError::internal(error.to_string()))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
