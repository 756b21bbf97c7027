//! `/live`, `/ready` and `/health`.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::ReadCaller;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::state::AppState;
use crate::wire::status_of;

/// A store that takes longer than this does not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The process turns.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Alive {
    #[schema(value_type = String, example = "alive")]
    status: &'static str,
}

/// The state of the service.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthView {
    /// `healthy`: at least one worker is usable. `unhealthy`: none is.
    #[schema(value_type = String)]
    status: &'static str,
    /// `connected` when at least one ComfyUI is usable, else `disconnected`.
    #[schema(value_type = String)]
    comfyui_server: &'static str,
    /// Tasks under way.
    queue_running: i64,
    /// Tasks that wait.
    queue_pending: i64,
    /// Seconds since 1970.
    timestamp: f64,
    /// Workers that get tasks.
    workers_usable: usize,
    /// All workers.
    workers_total: usize,
    /// Why it is not healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Whether the process responds. Needs no key.
///
/// Answered by a thread of its own while everything else stands still: 200 at first, 503 after `process.watchdog`.
#[utoipa::path(
    get, path = "/live", tag = "service",
    responses(
        (status = 200, description = "It does", body = Alive),
        (status = 503, description = "It does not", body = ErrorBody),
    ),
)]
pub(crate) async fn live(State(state): State<AppState>) -> ApiResult<Json<Alive>> {
    if state.pulse.turns() { Ok(Json(Alive { status: "alive" })) } else { Err(still()) }
}

/// Nothing turns but what answers this.
pub(crate) fn still() -> ApiError {
    let error = "the process does not turn: its log says what holds it, and a restart is in order";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "still", error)
}

/// Whether requests can be served: the store answers. Needs no key.
#[utoipa::path(
    get, path = "/ready", tag = "service",
    responses(
        (status = 200, description = "They can", body = Alive),
        (status = 503, description = "They cannot", body = ErrorBody),
    ),
)]
pub(crate) async fn ready(State(state): State<AppState>) -> ApiResult<Json<Alive>> {
    if state.stop.is_cancelled() {
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping"));
    }
    match tokio::time::timeout(PATIENCE, state.store.ping()).await {
        Ok(Ok(())) => Ok(Json(Alive { status: "ready" })),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            let error = format!("the store did not answer within {} s", PATIENCE.as_secs());
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error).retry_after(2))
        }
    }
}

/// The state of the service. 503 only when no worker is usable.
#[utoipa::path(
    get, path = "/health", tag = "service",
    responses(
        (status = 200, description = "At least one worker is usable", body = HealthView),
        (status = 503, description = "No worker is usable", body = HealthView),
    ),
)]
pub(crate) async fn health(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
) -> ApiResult<Response> {
    let tenant = (!caller.is_admin()).then_some(&caller.tenant);
    let counts = state.store.counts(tenant).await?;
    let workers = state.store.workers().await?;
    let now = Timestamp::now();
    let usable =
        workers.iter().filter(|worker| status_of(worker, now).1 && worker.report.health.is_usable()).count();
    let well = usable > 0;
    let error = match (well, workers.is_empty()) {
        (true, _) => None,
        (false, true) => {
            Some("no worker is known: name a ComfyUI with --comfyui, or start `remuda worker`".to_owned())
        }
        (false, false) => Some("no worker is usable; /api/v1/workers says why".to_owned()),
    };
    let view = HealthView {
        status: if well { "healthy" } else { "unhealthy" },
        comfyui_server: if well { "connected" } else { "disconnected" },
        queue_running: counts.running,
        queue_pending: counts.pending,
        timestamp: now.as_microsecond() as f64 / 1e6,
        workers_usable: usable,
        workers_total: workers.len(),
        error,
    };
    let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, Json(view)).into_response())
}
