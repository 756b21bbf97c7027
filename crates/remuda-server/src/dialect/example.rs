//! The API of clients that speak of jobs.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http::{HeaderMap, Method, StatusCode};
use remuda_core::{Status, Task, TaskId};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{ReadCaller, SubmitCaller};
use crate::dialect::{Contest, Dialect, nowhere};
use crate::error::{ApiResult, ErrorBody};
use crate::extract::{TaskPath, read_body_with, read_json};
use crate::service::{self, Draft};
use crate::state::AppState;

/// What is to be named in the list of dialects.
pub(crate) const DIALECT: Dialect = Dialect {
    routes: api,
    refusal: Some(refused),
    // Their clients also send to a path that ComfyUI has, and say `workflow` where ComfyUI's say `prompt`.
    contests: &[Contest { method: Method::POST, path: "/prompt", is_ours, handler: || post(run) }],
    // They send headers, and hear of a task when they ask for it.
    key_in_query: nowhere,
    listens: None,
};

fn api() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(run)).routes(routes!(job))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Run {
    /// The workflow, in ComfyUI's API format.
    #[schema(value_type = Object)]
    workflow: Box<RawValue>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Job {
    /// Its name.
    #[schema(value_type = String)]
    job: TaskId,
    /// How it is.
    #[schema(value_type = String)]
    state: Status,
}

impl From<Task> for Job {
    fn from(task: Task) -> Self {
        Self { job: task.id, state: task.status }
    }
}

/// Run a workflow as a job.
#[utoipa::path(post, path = "/runs", tag = "jobs", request_body = Run, responses((status = 200, body = Job)))]
async fn run(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Json<Job>> {
    let (most, time) = (state.limits.body, state.limits.body_time);
    let (bytes, permit) = read_body_with(&headers, body, most, time, state.permits.submission()).await?;
    let (size, read) = (bytes.len(), move || read_json::<Run>(None, &bytes));
    // Bodies may be large: they are read beside the runtime.
    let run = state.compute_admitted("reading a job", &caller.tenant, &permit, size, read).await??;
    let draft = Draft::new(run.workflow, &state.defaults);
    let checked = service::check(&state, &caller, draft, &permit).await?;
    let taken = service::submit(&state, checked, permit).await?;
    Ok(Json(taken.seen.task.into()))
}

/// Look at a job.
#[utoipa::path(get, path = "/runs/{id}", tag = "jobs", params(("id" = String, Path)), responses((status = 200, body = Job)))]
async fn job(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    TaskPath(id): TaskPath,
) -> ApiResult<Json<Job>> {
    Ok(Json(service::glance(&state, &caller, id).await?.task.into()))
}

/// Every error, also those of the layers above: no key, say.
fn refused(status: StatusCode, body: ErrorBody) -> Response {
    (status, Json(json!({"failed": true, "why": body.error}))).into_response()
}

/// Whether a body for a contested path is one of ours.
fn is_ours(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Ours {
        #[serde(rename = "workflow")]
        _workflow: IgnoredAny,
    }
    serde_json::from_slice::<Ours>(body).is_ok()
}
