//! Tasks in the answers to those who submit, cancel and retry them.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use http::header;
use remuda_store::Glance;

use crate::error::{ApiError, ApiResult};
use crate::service;
use crate::share::{Held, Visit};
use crate::state::AppState;
use crate::wire::TaskView;

/// A task as it is, with all that it left. What is large is counted while it is on its way, and written beside the runtime.
pub(super) async fn shown(state: &AppState, seen: Glance, warnings: Vec<String>) -> ApiResult<Response> {
    let (task, pass) = service::whole(state, &Visit::guest(), seen).await?;
    let Some(pass) = pass else {
        let mut view = TaskView::new(task, state.public_url.as_ref());
        view.warnings = warnings;
        return Ok(Json(view).into_response());
    };
    let (tenant, id, size, base) =
        (task.tenant.clone(), task.id, task.text_bytes(), state.public_url.clone());
    let write = move || {
        let mut view = TaskView::new(task, base.as_ref());
        view.warnings = warnings;
        serde_json::to_vec(&view)
    };
    let written = state.compute_of("writing a task", &tenant, id, size, write).await?;
    let written = written.map_err(|error| ApiError::internal(error.to_string()))?;
    let response = ([(header::CONTENT_TYPE, "application/json")], written).into_response();
    Ok(response.map(|body| Held::wrap(body, pass)))
}
