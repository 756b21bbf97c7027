//! `/users` and `/settings`. Every setting is a document of its own, so that two changes at once never undo each other.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http::{HeaderMap, StatusCode};
use remuda_core::Tenant;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{LONGEST, LONGEST_NAME};
use crate::access::{ReadCaller, SubmitCaller};
use crate::error::ApiResult;
use crate::extract::{ApiPath, read_body_with};
use crate::native::prompts::{fixed, separated, streamed};
use crate::share::{Visit, paced};
use crate::state::AppState;

/// The collection that settings are in.
const SPACE: &str = "settings";

/// How many settings one request may change.
const MOST: usize = 10_000;

/// `GET /users`: one user per tenant, whose things are kept here.
pub(super) async fn users(_caller: ReadCaller) -> Response {
    Json(json!({"storage": "server", "migrated": true})).into_response()
}

/// `GET /settings`. They are read as the client takes them.
pub(super) async fn all(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
) -> ApiResult<Response> {
    let permit = state.permits.download()?;
    let names = state.store.documents(&caller.tenant, SPACE, "").await?;
    let names: Vec<String> = names.into_iter().map(|info| info.path).collect();
    let (store, tenant) = (Arc::clone(&state.store), caller.tenant);
    let read = move |name: String| {
        let (store, tenant) = (Arc::clone(&store), tenant.clone());
        async move {
            // One may have gone meanwhile.
            let document = store.document(&tenant, SPACE, &name).await.map_err(io::Error::other)?;
            Ok(document.and_then(|document| pair(&name, document.bytes)))
        }
    };
    let pieces = paced(state.permits.lists(), state.memory.clone(), Visit::guest(), names, read);
    Ok(streamed(fixed("{").chain(separated(pieces)).chain(fixed("}")).inspect(move |_| {
        let _held_to_the_end = &permit;
    })))
}

/// `"name":value`. What cannot be read is as good as not set.
fn pair(name: &str, value: Vec<u8>) -> Option<String> {
    let value = String::from_utf8(value).ok()?;
    serde_json::from_str::<IgnoredAny>(&value).ok()?;
    Some(format!("{}:{value}", Value::from(name)))
}

/// `GET /settings/{id}`: what was never set is null.
pub(super) async fn one(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiPath(id): ApiPath<String>,
) -> ApiResult<Response> {
    if !is_name(&id) {
        return Ok(StatusCode::BAD_REQUEST.into_response());
    }
    let _reading = state.permits.read().await?;
    Ok(Json(setting(&state, &caller.tenant, &id).await?).into_response())
}

/// `POST /settings`: those named are changed, the others stay.
pub(super) async fn change_all(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<StatusCode> {
    let (time, permit) = (state.limits.body_time, state.permits.submission());
    let (bytes, permit) = read_body_with(&headers, body, LONGEST, time, permit).await?;
    let size = bytes.len();
    let read = move || serde_json::from_slice::<BTreeMap<String, Box<RawValue>>>(&bytes);
    let Ok(settings) =
        state.compute_admitted("reading settings", &caller.tenant, &permit, size, read).await?
    else {
        return Ok(StatusCode::BAD_REQUEST);
    };
    if settings.len() > MOST || !settings.keys().all(|name| is_name(name)) {
        return Ok(StatusCode::BAD_REQUEST);
    }
    for (name, value) in settings {
        keep(&state, &caller.tenant, &name, &value).await?;
    }
    Ok(StatusCode::OK)
}

/// `POST /settings/{id}`
pub(super) async fn change_one(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    ApiPath(id): ApiPath<String>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<StatusCode> {
    let (time, permit) = (state.limits.body_time, state.permits.submission());
    let (bytes, permit) = read_body_with(&headers, body, LONGEST, time, permit).await?;
    let size = bytes.len();
    let read = move || serde_json::from_slice::<Box<RawValue>>(&bytes);
    match state.compute_admitted("reading settings", &caller.tenant, &permit, size, read).await? {
        Ok(value) if is_name(&id) => keep(&state, &caller.tenant, &id, &value).await?,
        _ => return Ok(StatusCode::BAD_REQUEST),
    }
    Ok(StatusCode::OK)
}

async fn setting(state: &AppState, tenant: &Tenant, name: &str) -> ApiResult<Option<Box<RawValue>>> {
    let document = state.store.document(tenant, SPACE, name).await?;
    // What cannot be read is as good as not set.
    let Some(document) = document else { return Ok(None) };
    let size = document.bytes.len();
    let read = move || serde_json::from_slice(&document.bytes).ok();
    state.compute("reading settings", tenant, size, read).await
}

async fn keep(state: &AppState, tenant: &Tenant, name: &str, value: &RawValue) -> ApiResult<()> {
    state.store.put_document(tenant, SPACE, name, value.get().as_bytes().to_vec(), true).await?;
    Ok(())
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.chars().any(char::is_control)
}
