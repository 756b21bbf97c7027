//! `POST /api/v1/assets`, `GET` and `DELETE /api/v1/assets/{sha256}`: files that tasks read.

use axum::Json;
use axum::extract::multipart::MultipartError;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use jiff::Timestamp;
use remuda_core::Sha256;
use remuda_files::BoxError;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::download::send;
use crate::access::{ReadCaller, SubmitCaller};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::extract::{ApiPath, ApiQuery};
use crate::form::{self, Form};
use crate::options::Limits;
use crate::service::{self, Brought};
use crate::state::AppState;
use crate::wire::absolute;

/// The longest name of a file, in bytes.
const MAX_NAME: usize = 255;

/// The most fields that a form may have.
const MOST_FIELDS: usize = 64;

/// A form is so much longer than its file, at most.
const LONGEST_ENVELOPE: u64 = 64 << 10;

/// How the file is called.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Called {
    /// The name of the file, for use in workflows. Of several uploads with the same name the newest counts.
    filename: Option<String>,
}

/// An uploaded file.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AssetView {
    /// Its name in `inputs` and in workflows: `asset:<sha256>`.
    id: String,
    /// Of its bytes.
    sha256: String,
    /// In bytes.
    size: i64,
    /// Media type.
    mime: String,
    /// Its name when it was uploaded.
    filename: String,
    /// Where to fetch it.
    url: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

/// Upload a file that workflows can read.
///
/// The body is the file, or a form with one file in it (`multipart/form-data`). It is streamed and identified by its content: the
/// same bytes again give the same `sha256` and take no more room.
#[utoipa::path(
    post, path = "/api/v1/assets", tag = "assets",
    params(Called),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 201, description = "Stored", body = AssetView),
        (status = 400, description = "The upload broke off, or is not a form with one file", body = ErrorBody),
        (status = 413, description = "The file is too large", body = ErrorBody),
        (status = 429, description = "The tenant has reached its limit", body = ErrorBody),
        (status = 422, description = "The name cannot be used", body = ErrorBody),
        (status = 507, description = "The disk is full", body = ErrorBody),
    ),
)]
pub(crate) async fn upload(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    ApiQuery(called): ApiQuery<Called>,
    request: Request,
) -> ApiResult<Response> {
    let _permit = state.permits.upload()?;
    let room = service::upload_room(&state, &caller.tenant).await?;
    let limit = room.longest;
    let patience = state.limits.body_time;
    let headers = request.headers();
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if let Some(length) = length {
        if length > limit.saturating_add(LONGEST_ENVELOPE) {
            return Err(room.refusal().into());
        }
        room.cover(length.saturating_sub(LONGEST_ENVELOPE))?;
    }
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let stage = async |pieces: BoxStream<'_, Result<Bytes, BoxError>>| {
        let staged = state.files.stage(room.counted(timely(pieces, &state.limits)), Some(limit)).await;
        staged.map_err(|error| ApiError::from(room.not_kept(error)))
    };
    let (found, staged) = if kind.starts_with("multipart/form-data") {
        let mut form = Form::read(request)
            .await
            .map_err(|error| ApiError::bad_request("bad_form", error.body_text()))?;
        let bad = |error: MultipartError| {
            ApiError::bad_request("bad_form", format!("the form cannot be read: {}", error.body_text()))
        };
        let mut sent = None;
        for n in 0.. {
            let slow = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "slow_body", "the form does not go on");
            let taken = form.counter();
            let next = tokio::time::timeout(patience, form.next()).await.map_err(slow)?;
            let Some(field) = next.map_err(bad)? else { break };
            if n >= MOST_FIELDS {
                let error = format!("the form has more than {MOST_FIELDS} fields");
                return Err(ApiError::bad_request("bad_form", error));
            }
            let Some(filename) = field.file_name().map(str::to_owned) else {
                tokio::time::timeout(patience, form::skip(field, taken)).await.map_err(slow)?.map_err(bad)?;
                continue;
            };
            if sent.is_some() {
                return Err(ApiError::bad_request(
                    "bad_form",
                    "the form has more than one file; upload them one by one",
                ));
            }
            let found = Found { filename: Some(filename), mime: field.content_type().map(str::to_owned) };
            let pieces = form::pieces(field, taken).map(|piece| piece.map_err(BoxError::from));
            sent = Some((found, stage(pieces.boxed()).await?));
        }
        sent.ok_or_else(|| ApiError::bad_request("bad_form", "the form has no file in it"))?
    } else {
        let found = Found { filename: None, mime: Some(kind) };
        let pieces = request.into_body().into_data_stream().map(|piece| piece.map_err(BoxError::from));
        (found, stage(pieces.boxed()).await?)
    };
    let brought = Brought { staged, room };
    let sha256 = brought.sha256();
    let filename = match called.filename.or(found.filename) {
        Some(name) => usable(&name)?,
        None => sha256.to_string(),
    };
    let mime = mime(found.mime.as_deref(), &filename);
    let asset = service::keep(&state, brought, filename, mime).await?;
    let place = format!("/api/v1/assets/{sha256}");
    let view = AssetView {
        id: format!("asset:{sha256}"),
        sha256: sha256.to_string(),
        size: asset.size,
        mime: asset.mime,
        filename: asset.filename,
        url: absolute(state.public_url.as_ref(), &place),
        created_at: asset.created_at,
    };
    let mut response = (StatusCode::CREATED, Json(view)).into_response();
    if let Ok(place) = HeaderValue::from_str(&place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// What the upload said of its file.
struct Found {
    filename: Option<String>,
    mime: Option<String>,
}

/// An uploaded file.
#[utoipa::path(
    get, path = "/api/v1/assets/{sha256}", tag = "assets",
    params(
        ("sha256" = String, Path, description = "Its content"),
        ("Range" = Option<String>, Header, description = "A part of it, as `bytes=0-99`."),
    ),
    responses(
        (status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "A part of the file"),
        (status = 304, description = "You have it"),
        (status = 400, description = "The hash is malformed", body = ErrorBody),
        (status = 404, description = "No such file, or not yours", body = ErrorBody),
        (status = 416, description = "The range begins after the end", body = ErrorBody),
    ),
)]
pub(crate) async fn asset(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiPath(sha256): ApiPath<String>,
    method: Method,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let sha256: Sha256 = sha256.strip_prefix("asset:").unwrap_or(&sha256).parse()?;
    let asset = state.store.asset(&caller.tenant, sha256).await?;
    let asset = asset.ok_or_else(|| ApiError::not_found("asset", &sha256.to_string()))?;
    send(&state, &method, &headers, asset.into()).await
}

/// Delete an uploaded file.
///
/// Under all its names, and with it the room that it took. While a task that has not ended reads it, it stays: 409 names
/// such a task. Others who uploaded the same file keep theirs.
#[utoipa::path(
    delete, path = "/api/v1/assets/{sha256}", tag = "assets",
    params(("sha256" = String, Path, description = "Its content")),
    responses(
        (status = 204, description = "Deleted"),
        (status = 400, description = "The hash is malformed", body = ErrorBody),
        (status = 404, description = "No such file, or not yours", body = ErrorBody),
        (status = 409, description = "A task that has not ended reads it", body = ErrorBody),
    ),
)]
pub(crate) async fn delete(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    ApiPath(sha256): ApiPath<String>,
) -> ApiResult<StatusCode> {
    let sha256: Sha256 = sha256.strip_prefix("asset:").unwrap_or(&sha256).parse()?;
    service::delete_asset(&state, &caller, sha256).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A stream whose pieces may take only this long, and that brings at least this many bytes in a second.
pub(crate) fn timely(
    pieces: impl Stream<Item = Result<Bytes, BoxError>> + Send,
    limits: &Limits,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    let (patience, least) = (limits.body_time, limits.body_rate.saturating_mul(limits.body_time.as_secs()));
    // When the bytes of the last while began to be counted, and how many there are.
    let begin = Some((Box::pin(pieces), Instant::now(), 0_u64));
    stream::unfold(begin, move |state| async move {
        let (mut pieces, since, came) = state?;
        let slow = |error: String| Some((Err(BoxError::from(error)), None));
        match tokio::time::timeout(patience, pieces.next()).await {
            Ok(None) => None,
            Ok(Some(Err(error))) => Some((Err(error), None)),
            Ok(Some(Ok(piece))) => {
                let came = came.saturating_add(piece.len() as u64);
                let state = match since.elapsed() < patience {
                    true => (pieces, since, came),
                    false if came < least => {
                        return slow(format!("only {came} bytes came within {} s", patience.as_secs()));
                    }
                    false => (pieces, Instant::now(), 0),
                };
                Some((Ok(piece), Some(state)))
            }
            Err(_) => slow(format!("no byte came for {} s", patience.as_secs())),
        }
    })
}

/// The last part of a name, if it can be one.
fn usable(name: &str) -> ApiResult<String> {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default().trim();
    if last.is_empty()
        || last == "."
        || last == ".."
        || last.len() > MAX_NAME
        || last.chars().any(char::is_control)
    {
        let error = format!("filename must have 1 to {MAX_NAME} bytes and no control characters");
        return Err(ApiError::invalid("filename", error));
    }
    Ok(last.to_owned())
}

/// What the client says, unless it says nothing; then what the name says.
pub(crate) fn mime(said: Option<&str>, filename: &str) -> String {
    let said = said.map(|kind| kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    let vague = ["", "application/octet-stream", "application/x-www-form-urlencoded"];
    let plausible = |kind: &String| {
        !vague.contains(&kind.as_str())
            && kind.len() < 100
            && kind.contains('/')
            && kind.chars().all(|c| c.is_ascii_alphanumeric() || "/+-._".contains(c))
    };
    said.filter(plausible)
        .unwrap_or_else(|| mime_guess::from_path(filename).first_or_octet_stream().to_string())
}
