//! `/userdata`: files of the user's own, saved workflows above all.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use remuda_core::{Sha256, Tenant};
use remuda_preflight::uploads::straight;
use remuda_store::DocumentInfo;

use super::listing::{self, DEEPEST, How, TooLong};
use super::{LONGEST, LONGEST_NAME};
use crate::access::{ReadCaller, SubmitCaller};
use crate::compute::LIGHT;
use crate::error::{ApiError, ApiResult};
use crate::extract::{ApiPath, read_body_with};
use crate::native::files::Pairs;
use crate::state::AppState;

/// The collection that the files are in.
const SPACE: &str = "userdata";

/// `GET /userdata?dir=`
pub(super) async fn list(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    uri: Uri,
) -> ApiResult<Response> {
    let query = Pairs::of(&uri);
    let Some(dir) = query.get("dir").filter(|dir| !dir.is_empty()) else {
        return Ok((StatusCode::BAD_REQUEST, "Directory not provided").into_response());
    };
    let Some(dir) = locate(dir) else {
        return Ok((StatusCode::FORBIDDEN, "Invalid directory").into_response());
    };
    let _reading = state.permits.read().await?;
    let documents = state.store.documents(&caller.tenant, SPACE, &listing::prefix(&dir)).await?;
    if documents.is_empty() && !dir.is_empty() {
        return Ok((StatusCode::NOT_FOUND, "Directory not found").into_response());
    }
    let how = How {
        recurse: query.is_true("recurse"),
        full_info: query.is_true("full_info"),
        split: query.is_true("split"),
    };
    written(&state, &caller.tenant, documents, move |documents| {
        Ok(serde_json::to_vec(&listing::list(documents, &dir, how)?))
    })
    .await
}

/// `GET /v2/userdata?path=`
pub(super) async fn list_v2(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    uri: Uri,
) -> ApiResult<Response> {
    let query = Pairs::of(&uri);
    let path = percent_decode_str(query.get("path").unwrap_or_default()).decode_utf8_lossy().into_owned();
    let Some(path) = locate(&path) else {
        return Ok((StatusCode::BAD_REQUEST, "Invalid path requested").into_response());
    };
    let _reading = state.permits.read().await?;
    let documents = state.store.documents(&caller.tenant, SPACE, &listing::prefix(&path)).await?;
    if documents.is_empty() && !path.is_empty() {
        return Ok(match state.store.document(&caller.tenant, SPACE, &path).await? {
            Some(_) => (StatusCode::BAD_REQUEST, "Requested path is not a directory"),
            None => (StatusCode::NOT_FOUND, "Requested path not found"),
        }
        .into_response());
    }
    written(&state, &caller.tenant, documents, move |documents| {
        Ok(serde_json::to_vec(&listing::list_v2(documents, &path)?))
    })
    .await
}

/// A list as an answer, made beside the runtime if it is long.
async fn written(
    state: &AppState,
    tenant: &Tenant,
    documents: Vec<DocumentInfo>,
    write: impl FnOnce(&[DocumentInfo]) -> Result<serde_json::Result<Vec<u8>>, TooLong> + Send + 'static,
) -> ApiResult<Response> {
    let size = documents.iter().map(|info| info.path.len()).sum();
    let list = move || write(&documents);
    match state.compute("listing user data", tenant, size, list).await? {
        Ok(Ok(text)) => Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response()),
        Ok(Err(error)) => Err(ApiError::internal(error.to_string())),
        Err(TooLong) => Ok((StatusCode::PAYLOAD_TOO_LARGE, TooLong::TEXT).into_response()),
    }
}

/// `GET /userdata/{file}`
pub(super) async fn get(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiPath(file): ApiPath<String>,
    asked: HeaderMap,
) -> ApiResult<Response> {
    let Some(path) = locate(&file) else { return Ok(StatusCode::FORBIDDEN.into_response()) };
    let _reading = state.permits.read().await?;
    let Some(document) = state.store.document(&caller.tenant, SPACE, &path).await? else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    let size = document.bytes.len() / LIGHT;
    let hash = move || (Sha256::of(&document.bytes), document);
    let (hash, document) = state.compute("hashing user data", &caller.tenant, size, hash).await?;
    let etag = format!("\"{hash}\"");
    let mut headers = HeaderMap::new();
    headers.extend(HeaderValue::from_str(&etag).ok().map(|etag| (header::ETAG, etag)));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    if asked.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == etag.as_bytes()) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    let mime = mime_guess::from_path(&path).first_or_octet_stream();
    headers.extend(HeaderValue::from_str(mime.as_ref()).ok().map(|mime| (header::CONTENT_TYPE, mime)));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // It is somebody's content, not a page of ours.
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    Ok((headers, document.bytes).into_response())
}

/// `POST /userdata/{file}`
pub(super) async fn put(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    ApiPath(file): ApiPath<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let Some(path) = locate(&file) else { return Ok(StatusCode::FORBIDDEN.into_response()) };
    if !is_name(&path) {
        return Ok(bad_name());
    }
    let query = Pairs::of(&uri);
    let (time, permit) = (state.limits.body_time, state.permits.submission());
    let (bytes, _permit) = read_body_with(&headers, body, LONGEST, time, permit).await?;
    let replace = query.get("overwrite") != Some("false");
    let stored = state.store.put_document(&caller.tenant, SPACE, &path, bytes.to_vec(), replace).await?;
    Ok(told(stored.as_ref(), &query))
}

/// `DELETE /userdata/{file}`
pub(super) async fn delete(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    ApiPath(file): ApiPath<String>,
) -> ApiResult<StatusCode> {
    let Some(path) = locate(&file) else { return Ok(StatusCode::FORBIDDEN) };
    let was_there = state.store.delete_document(&caller.tenant, SPACE, &path).await?;
    Ok(if was_there { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND })
}

/// `POST /userdata/{file}/move/{dest}`. The new file is there before the old one goes.
pub(super) async fn rename(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    ApiPath((file, dest)): ApiPath<(String, String)>,
    uri: Uri,
) -> ApiResult<Response> {
    let (Some(from), Some(to)) = (locate(&file), locate(&dest)) else {
        return Ok(StatusCode::FORBIDDEN.into_response());
    };
    let _reading = state.permits.read().await?;
    let Some(document) = state.store.document(&caller.tenant, SPACE, &from).await? else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    if !is_name(&to) {
        return Ok(bad_name());
    }
    let query = Pairs::of(&uri);
    let replace = query.get("overwrite") != Some("false") || from == to;
    let stored = state.store.put_document(&caller.tenant, SPACE, &to, document.bytes, replace).await?;
    if stored.is_some() && from != to {
        state.store.delete_document(&caller.tenant, SPACE, &from).await?;
    }
    Ok(told(stored.as_ref(), &query))
}

fn told(stored: Option<&DocumentInfo>, query: &Pairs) -> Response {
    match stored {
        None => (StatusCode::CONFLICT, "File already exists").into_response(),
        Some(info) if query.is_true("full_info") => {
            Json(listing::file_info(&info.path, info)).into_response()
        }
        Some(info) => Json(&info.path).into_response(),
    }
}

/// The path that a request names, if it stays below the user's folder. Names are decoded a second time, as ComfyUI does.
fn locate(name: &str) -> Option<String> {
    straight(&percent_decode_str(name).decode_utf8_lossy())
}

fn is_name(path: &str) -> bool {
    !path.is_empty() && path.len() <= LONGEST_NAME && path.split('/').count() <= DEEPEST
}

fn bad_name() -> Response {
    let error = format!("A path must have 1 to {LONGEST_NAME} bytes and at most {DEEPEST} parts");
    (StatusCode::BAD_REQUEST, error).into_response()
}
