//! `GET /api/v1/tasks`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header;
use remuda_core::Tenant;
use remuda_pool::Work;
use remuda_store::ListQuery;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::access::ReadCaller;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::ApiQuery;
use crate::service::{self, Wish};
use crate::share::{Pass, Visit};
use crate::state::AppState;
use crate::wire::{TaskPage, TaskView, name};

const USUAL: i64 = 50;
const MOST: i64 = 500;

/// How many are read and written together.
const STEP: u32 = 50;

/// A page ends when it is this long, in bytes; the next one goes on from there.
const LONG: usize = 8 << 20;

/// How large they are is not known before they are written: never small.
const WEIGHT: usize = 64 << 10;

/// Which tasks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Only in this state: pending, running, completed, failed or cancelled.
    status: Option<String>,
    /// Only with this workflow id.
    workflow_id: Option<String>,
    /// How many to return at most, 1 to 500; 50 when absent.
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
) -> ApiResult<Response> {
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
    let tenant = which.tenant.map(Tenant::new).transpose();
    let tenant = tenant.map_err(|error| ApiError::invalid("tenant", error.to_string()))?;
    let wish = Wish { tenant, status, workflow_id: which.workflow_id, before, limit };
    let query = service::query(&caller, wish)?;
    let page = write(&state, &caller.tenant, query).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], Bytes::from_owner(page)).into_response())
}

/// A page as text, counted as long as it is there.
#[derive(Debug, Default)]
struct Page {
    text: Vec<u8>,
    passes: Vec<Pass>,
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// Reads tasks and writes them, a few at a time: records may have much in them, which as values takes many times its room.
async fn write(state: &AppState, reader: &Tenant, mut query: ListQuery) -> ApiResult<Page> {
    let reading = Arc::new(state.permits.list().await?);
    let guest = Visit::guest();
    let mut page = Page { text: b"{\"tasks\":[".to_vec(), passes: Vec::new() };
    let mut left = query.limit;
    let next = loop {
        query.limit = left.min(STEP);
        let found = service::list(state, &query).await?;
        let Some(last) = found.tasks.last().map(|task| task.id) else { break None };
        left = left.saturating_sub(u32::try_from(found.tasks.len()).unwrap_or(left));
        let base = state.public_url.clone();
        let write = move || {
            let views = found.tasks.into_iter().map(|task| TaskView::new(task, base.as_ref()));
            serde_json::to_vec(&views.collect::<Vec<_>>())
        };
        let work =
            Work::new("writing a list of tasks", reader.as_str(), WEIGHT).patient().holding(reading.clone());
        let list = state.pool.run(work, write).await.map_err(ApiError::from)?;
        let list = list.map_err(|error| ApiError::internal(error.to_string()))?;
        let pass = state.memory.take(&guest, list.len() as u64).map_err(|_| ApiError::no_memory())?;
        page.passes.push(pass);
        if !page.text.ends_with(b"[") {
            page.text.push(b',');
        }
        // Without its brackets.
        page.text.extend_from_slice(list.get(1..list.len() - 1).unwrap_or_default());
        if !found.more || left == 0 || page.text.len() >= LONG {
            break found.more.then_some(last);
        }
        query.before = Some(last);
    };
    let next = serde_json::json!(next.map(|id| id.to_string()));
    page.text.extend_from_slice(format!("],\"next\":{next}}}").as_bytes());
    Ok(page)
}
