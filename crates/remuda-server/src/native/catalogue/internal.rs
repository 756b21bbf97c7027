//! `/internal/…` of ComfyUI's own page. Paths and logs of this machine and of workers are not told.
//!
//! Other gateways use `/internal/v1/…`, which is not this.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::{Value, json};

use super::models::{folders, place};
use crate::access::ReadCaller;
use crate::error::{ApiError, ApiResult};
use crate::extract::ApiPath;
use crate::share::{Held, Visit};
use crate::state::AppState;

/// How many of the caller's uploads are listed, by name.
const MOST_UPLOADS: u32 = 10_000;

/// `GET /internal/folder_paths`
pub(super) async fn folder_paths(State(state): State<AppState>, _: ReadCaller) -> ApiResult<Json<Value>> {
    let folders = folders(&state).await?;
    let members = folders.names.into_iter().map(|name| {
        let place = json!([place(&name)]);
        (name, place)
    });
    Ok(Json(Value::Object(members.collect())))
}

/// `GET /internal/files/{type}`: what lies in the folder itself. Outputs are all in folders of their tasks.
pub(super) async fn files(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiPath(kind): ApiPath<String>,
) -> ApiResult<Response> {
    Ok(match kind.as_str() {
        "input" => {
            // Until it is known how much it is.
            let reading = state.permits.list().await?;
            let uploads = state.store.assets(&caller.tenant, MOST_UPLOADS).await?;
            let names = uploads.into_iter().map(|asset| asset.filename);
            let names: Vec<String> = names.filter(|name| !name.contains('/')).collect();
            let bytes = names.iter().map(|name| name.len() + size_of::<String>()).sum::<usize>();
            // The names, and the text that is made of them.
            let pass = state.memory.take(&Visit::guest(), 2 * bytes as u64);
            let pass = pass.map_err(|_| ApiError::no_memory())?;
            drop(reading);
            let write = move || serde_json::to_vec(&names);
            let text = state.compute("listing uploads", &caller.tenant, bytes, write).await?;
            let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
            let answer = ([(header::CONTENT_TYPE, "application/json")], text).into_response();
            answer.map(|body| Held::wrap(body, pass))
        }
        "output" | "temp" => Json(json!([])).into_response(),
        _ => (StatusCode::BAD_REQUEST, Json(json!({"error": "Invalid directory type"}))).into_response(),
    })
}

/// `GET /internal/logs`
pub(super) async fn logs(_: ReadCaller) -> Json<&'static str> {
    Json("")
}

/// `GET /internal/logs/raw`
pub(super) async fn raw_logs(_: ReadCaller) -> Json<Value> {
    Json(json!({"entries": [], "size": {"cols": 80, "rows": 24}}))
}

/// `PATCH /internal/logs/subscribe`
pub(super) async fn subscribe_logs(_: ReadCaller) -> StatusCode {
    StatusCode::OK
}
