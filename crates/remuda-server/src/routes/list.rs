//! `GET /api/v1/tasks`.

use axum::Json;
use axum::extract::State;
use remuda_core::Tenant;
use remuda_store::ListQuery;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::access::ReadCaller;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::ApiQuery;
use crate::state::AppState;
use crate::wire::{TaskPage, TaskView, name};

const USUAL: i64 = 50;
const MOST: i64 = 500;

/// Which tasks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Only in this state: pending, running, completed, failed or cancelled.
    status: Option<String>,
    /// Only with this workflow id.
    workflow_id: Option<String>,
    /// At most so many, 1 to 500; 50 when absent.
    limit: Option<i64>,
    /// Only older than this task: `next` of the page before.
    before: Option<String>,
    /// Only of this tenant. For keys with the scope admin, which see all of them.
    tenant: Option<String>,
}

/// Tasks, newest first, without their workflows.
#[utoipa::path(
    get, path = "/api/v1/tasks", tag = "tasks",
    params(Which),
    responses(
        (status = 200, description = "A page of tasks", body = TaskPage),
        (status = 422, description = "A parameter is wrong", body = ErrorBody),
    ),
)]
pub(crate) async fn list(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiQuery(which): ApiQuery<Which>,
) -> ApiResult<Json<TaskPage>> {
    let status = match which.status.as_deref() {
        None | Some("") => None,
        Some(text) => Some(text.parse().map_err(|error: String| ApiError::invalid("status", error))?),
    };
    if let Some(id) = &which.workflow_id {
        name("workflow_id", id)?;
    }
    let limit = which.limit.unwrap_or(USUAL);
    let limit = u32::try_from(limit).ok().filter(|_| (1..=MOST).contains(&limit));
    let limit = limit.ok_or_else(|| ApiError::invalid("limit", format!("limit must be 1 to {MOST}")))?;
    let before = match which.before.as_deref() {
        None => None,
        Some(text) => Some(text.parse().map_err(|error| ApiError::from(error).field("before"))?),
    };
    let tenant = match which.tenant {
        None if caller.is_admin() => None,
        None => Some(caller.tenant.clone()),
        Some(text) => {
            let tenant = Tenant::new(text).map_err(|error| ApiError::invalid("tenant", error.to_string()))?;
            if !caller.sees(&tenant) {
                return Err(ApiError::forbidden(
                    "foreign_tenant",
                    "this key sees only its own tenant's tasks",
                ));
            }
            Some(tenant)
        }
    };
    let query = ListQuery { tenant, status, workflow_id: which.workflow_id, before, limit };
    // Records may have much in them, too.
    let _reading = state.permits.read().await?;
    let page = state.store.list(&query).await?;
    let next = page.tasks.last().filter(|_| page.more).map(|task| task.id.to_string());
    let base = state.public_url.as_ref();
    let tasks = page.tasks.into_iter().map(|task| TaskView::new(task, base)).collect();
    Ok(Json(TaskPage { tasks, next }))
}
