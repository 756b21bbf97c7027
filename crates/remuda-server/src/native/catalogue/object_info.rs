//! `GET /object_info` and `/object_info/{class}`: the nodes of all workers, with the caller's uploads among the choices.
//!
//! The answer has megabytes. It is made once for every set of descriptions; for a tenant with uploads, the few classes that
//! take files are put in between, and the rest is the same memory for everybody.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use remuda_core::Sha256;
use serde_json::json;

use super::choices::put_in;
use super::merge::Merged;
use crate::access::{Caller, ReadCaller};
use crate::error::{ApiError, ApiResult};
use crate::extract::ApiPath;
use crate::routes::names;
use crate::share::{Held, Visit};
use crate::state::AppState;

/// How many uploads are offered as choices, by name.
const MOST_UPLOADS: u32 = 10_000;

/// `GET /object_info`
pub(super) async fn all(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let merged = state.catalogue.known.merged(&state.store, &state.pool).await?;
    described(&state, &caller, &headers, merged, None).await
}

/// `GET /object_info/{class}`. A class that nobody has is an empty answer, as it is at a ComfyUI.
pub(super) async fn one(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiPath(class): ApiPath<String>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let merged = state.catalogue.known.merged(&state.store, &state.pool).await?;
    if !merged.classes.contains_key(&class) {
        return answer(&headers, "none", 2, Body::from("{}"));
    }
    described(&state, &caller, &headers, merged, Some(class)).await
}

/// All classes or one, with the caller's uploads among the choices.
async fn described(
    state: &AppState,
    caller: &Caller,
    headers: &HeaderMap,
    merged: Arc<Merged>,
    class: Option<String>,
) -> ApiResult<Response> {
    let part = class.as_ref().and_then(|class| merged.classes.get(class)).cloned();
    let part = part.unwrap_or(0..merged.whole.len());
    let mut etag = merged.hash.clone();
    if let Some(class) = &class {
        etag = format!("{etag}-{}", &Sha256::of(class.as_bytes()).to_string()[..16]);
    }
    // Classes that take uploads, in the order of the text.
    let takers = match &class {
        None => 0..merged.uploads.len(),
        Some(class) => {
            let place = merged.uploads.iter().position(|upload| upload.class == *class);
            place.map_or(0..0, |place| place..place + 1)
        }
    };
    let mut pieces = vec![merged.whole.slice(part.clone())];
    let mut kept = None;
    if !takers.is_empty() {
        let permit = state.permits.download()?;
        // Until it is known how much it is.
        let reading = state.permits.read().await?;
        let uploads = state.store.assets(&caller.tenant, MOST_UPLOADS).await?;
        if !uploads.is_empty() {
            let names: usize = uploads.iter().map(|asset| asset.filename.len() + size_of_val(asset)).sum();
            let size = part.len().saturating_add(names);
            let theirs = Arc::clone(&merged);
            let put = move || put_in(&theirs, part, &theirs.uploads[takers], &uploads);
            let put = state.compute("listing uploads in an object_info", &caller.tenant, size, put).await?;
            etag = format!("{etag}-{}", &put.tag[..16]);
            let pass = state.memory.take(&Visit::guest(), put.own_bytes as u64);
            kept = Some((permit, pass.map_err(|_| ApiError::no_memory())?));
            pieces = put.pieces;
        }
        drop(reading);
    }
    if is_known(headers, &etag) {
        return answer(headers, &etag, 0, Body::empty());
    }
    if let Some(class) = class {
        pieces.insert(0, Bytes::from(format!("{{{}: ", json!(class))));
        pieces.push(Bytes::from_static(b"}"));
    }
    let length = pieces.iter().map(Bytes::len).sum();
    let shared = merged.hold(&state.memory)?;
    answer(headers, &etag, length, Held::wrap(streamed(pieces), (kept, shared)))
}

fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    names(headers, header::IF_NONE_MATCH, &format!("\"{etag}\""))
}

fn streamed(pieces: Vec<Bytes>) -> Body {
    Body::from_stream(futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::convert::Infallible>)))
}

fn answer(asked: &HeaderMap, etag: &str, length: usize, body: Body) -> ApiResult<Response> {
    let mut headers = HeaderMap::new();
    let quoted = HeaderValue::from_str(&format!("\"{etag}\""));
    headers.insert(header::ETAG, quoted.map_err(|error| ApiError::internal(error.to_string()))?);
    // Workers and uploads come and go: ask each time, and be told that nothing changed.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    if is_known(asked, etag) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
    Ok((StatusCode::OK, headers, body).into_response())
}
