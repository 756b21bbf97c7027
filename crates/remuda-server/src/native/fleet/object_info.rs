//! `GET /object_info` and `/object_info/{class}`: the nodes of all workers, with the caller's uploads among the choices.
//!
//! The answer has megabytes. It is made once for every set of descriptions; for a tenant with uploads, the few classes that
//! take files are put in between, and the rest is the same memory for everybody.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use remuda_core::Sha256;
use remuda_runner::object_info::UploadKind;
use remuda_store::Asset;
use serde_json::{Value, json};

use super::merge::{Merged, UploadClass, add_choices};
use crate::access::{Caller, ReadCaller};
use crate::error::{ApiError, ApiResult};
use crate::extract::ApiPath;
use crate::routes::names;
use crate::share::{Held, Visit};
use crate::state::AppState;

/// So many uploads are offered as choices, by name.
const MOST_UPLOADS: u32 = 10_000;

/// In so many classes they are offered: each gets all of them, and the answer grows with both.
const MOST_CLASSES: usize = 500;

/// `GET /object_info`
pub(super) async fn all(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let merged = state.fleet.known.merged(&*state.store, &state.pool).await?;
    let uploads = uploads(&state, &caller, &merged).await?;
    if uploads.is_empty() {
        // The same memory for everybody: not counted for its readers.
        let (length, whole) = (merged.whole.len(), vec![merged.whole.clone()]);
        return answer(&headers, &merged.hash, length, streamed(whole));
    }
    let listed: Vec<&str> = uploads.iter().map(|asset| asset.filename.as_str()).collect();
    let listed = Sha256::of(json!(listed).to_string().as_bytes()).to_string();
    let etag = format!("{}-{}", merged.hash, &listed[..16]);
    if is_known(&headers, &etag) {
        return answer(&headers, &etag, 0, Body::empty());
    }
    let permit = state.permits.download()?;
    let size = merged.whole.len();
    let made = move || pieces(&merged, &uploads);
    let pieces = state.compute("listing uploads in an object_info", &caller.tenant, size, made).await?;
    let length: usize = pieces.iter().map(Bytes::len).sum();
    let pass = state.memory.take(&Visit::guest(), length as u64).map_err(|_| ApiError::no_memory())?;
    answer(&headers, &etag, length, Held::wrap(streamed(pieces), (permit, pass)))
}

/// `GET /object_info/{class}`. A class that nobody has is an empty answer, as it is at a ComfyUI.
pub(super) async fn one(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiPath(class): ApiPath<String>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let merged = state.fleet.known.merged(&*state.store, &state.pool).await?;
    let Some(range) = merged.classes.get(&class) else {
        return answer(&headers, "none", 2, Body::from("{}"));
    };
    let mut text = merged.whole.slice(range.clone());
    if let Some(upload) = merged.uploads.iter().find(|upload| upload.class == class) {
        let uploads = uploads(&state, &caller, &merged).await?;
        if !uploads.is_empty() {
            text = with_uploads(&text, upload, &uploads);
        }
    }
    let whole = [format!("{{{}: ", json!(class)).as_bytes(), &text, b"}"].concat();
    let etag = Sha256::of(&whole).to_string();
    answer(&headers, &etag, whole.len(), Body::from(whole))
}

/// The caller's uploads, if there is a node that could take one.
async fn uploads(state: &AppState, caller: &Caller, merged: &Merged) -> ApiResult<Vec<Asset>> {
    if merged.uploads.is_empty() {
        return Ok(Vec::new());
    }
    Ok(state.store.assets(&caller.tenant, MOST_UPLOADS).await?)
}

/// The whole with the classes that take files replaced.
fn pieces(merged: &Merged, uploads: &[Asset]) -> Vec<Bytes> {
    let mut pieces = Vec::with_capacity(2 * merged.uploads.len() + 1);
    let mut from = 0;
    for upload in merged.uploads.iter().take(MOST_CLASSES) {
        let Some(range) = merged.classes.get(&upload.class) else { continue };
        pieces.push(merged.whole.slice(from..range.start));
        pieces.push(with_uploads(&merged.whole.slice(range.clone()), upload, uploads));
        from = range.end;
    }
    pieces.push(merged.whole.slice(from..));
    pieces
}

/// A class with the uploads of the right kind among its choices.
fn with_uploads(text: &Bytes, upload: &UploadClass, uploads: &[Asset]) -> Bytes {
    let Ok(mut class) = serde_json::from_slice::<Value>(text) else { return text.clone() };
    for (input, kind) in &upload.inputs {
        let fitting = uploads.iter().filter(|asset| fits(asset, kind));
        add_choices(&mut class, input, fitting.map(|asset| asset.filename.clone()));
    }
    Bytes::from(class.to_string())
}

/// Whether a file is of the kind that an input takes, as far as its media type or its name tells.
fn fits(asset: &Asset, kind: &UploadKind) -> bool {
    let by_name = mime_guess::from_path(&asset.filename).first_raw();
    let is =
        |prefix: &str| asset.mime.starts_with(prefix) || by_name.is_some_and(|mime| mime.starts_with(prefix));
    match kind {
        UploadKind::Image => is("image/"),
        UploadKind::Video => is("video/") || is("image/gif") || is("image/webp"),
        // ComfyUI takes the sound of films.
        UploadKind::Audio => is("audio/") || is("video/"),
        _ => !is("image/") && !is("video/") && !is("audio/"),
    }
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
