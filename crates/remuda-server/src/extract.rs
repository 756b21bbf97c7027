//! Reading requests, with errors that name the part at fault.

use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::{Bytes, BytesMut};
use comfyui::lenient::count_values;
use futures_util::StreamExt as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use remuda_core::TaskId;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use crate::error::{ApiError, ApiResult};
use crate::share::Visit;
use crate::state::AppState;

/// A refused body is read on for this many times its limit, so that its sender sees the answer and not a broken pipe.
const COURTESY: u64 = 4;

/// … and for this long.
const COURTESY_TIME: Duration = Duration::from_secs(5);

/// How much of a body is read without a permit.
const SMALL: usize = 16 << 10;

/// The longest body of a request that brings little.
const SMALL_BODY: u64 = 1 << 20;

/// How many JSON values a request may have beside its graph. A value takes up to a hundred times the room of its text.
pub(crate) const MOST_VALUES: usize = 200_000;

/// The id of a task in a path. A malformed one is 400, whatever the route.
pub(crate) struct TaskPath(pub(crate) TaskId);

impl<S: Send + Sync> FromRequestParts<S> for TaskPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text: ApiPath<String> = ApiPath::from_request_parts(parts, state).await?;
        Ok(Self(text.0.parse()?))
    }
}

/// Parts of a path.
pub(crate) struct ApiPath<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for ApiPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path: Result<Path<T>, PathRejection> = Path::from_request_parts(parts, state).await;
        path.map(|Path(value)| Self(value))
            .map_err(|error| ApiError::bad_request("malformed_path", error.body_text()))
    }
}

/// The query of a URL. Unknown parameters are refused by the types.
pub(crate) struct ApiQuery<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for ApiQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query: Result<Query<T>, QueryRejection> = Query::from_request_parts(parts, state).await;
        match query {
            Ok(Query(value)) => Ok(Self(value)),
            Err(error) => {
                let text = error.body_text();
                let text =
                    text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text).to_owned();
                let new = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_query", text.clone());
                Err(match quoted(&text) {
                    Some(field) => new.field(field),
                    None => new,
                })
            }
        }
    }
}

/// A whole body with little in it: ids of prompts, mostly.
pub(crate) struct SmallBody(pub(crate) Bytes);

impl FromRequest<AppState> for SmallBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let (limit, time) = (state.limits.body.min(SMALL_BODY), state.limits.body_time);
        read_body(&parts.headers, body, limit, time).await.map(Self)
    }
}

/// Reads a whole body of at most `limit` bytes within `time`.
pub(crate) async fn read_body(
    headers: &HeaderMap,
    body: Body,
    limit: u64,
    time: Duration,
) -> ApiResult<Bytes> {
    let (bytes, ()) =
        read_body_with(headers, body, limit, time, std::future::ready(ApiResult::Ok(()))).await?;
    Ok(bytes)
}

/// Reads a whole body as `read_body` does, and asks for a permit when it takes room, or is there. A small body that
/// comes slowly keeps nobody else from a permit.
pub(crate) async fn read_body_with<P, E: Into<ApiError>>(
    headers: &HeaderMap,
    body: Body,
    limit: u64,
    time: Duration,
    permit: impl Future<Output = Result<P, E>>,
) -> ApiResult<(Bytes, P)> {
    let mut permit = std::pin::pin!(permit);
    let visit = Visit::current();
    let mut granted = None;
    let too_large = || ApiError::too_large("the body", limit);
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let mut stream = body.into_data_stream();
    if length.is_some_and(|length| length > limit) {
        skip(&mut stream, length.unwrap_or(0).min(limit.saturating_mul(COURTESY))).await;
        return Err(too_large());
    }
    let mut deadline = Instant::now() + time;
    let mut all = BytesMut::with_capacity(usize::try_from(length.unwrap_or(0)).unwrap_or(SMALL).min(SMALL));
    loop {
        let chunk = timeout_at(deadline, stream.next()).await.map_err(|_| {
            let error = format!("the body did not arrive within {} s", time.as_secs());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "slow_body", error)
        })?;
        match chunk {
            None => {
                let granted = match granted {
                    Some(granted) => granted,
                    None => permit.await.map_err(Into::into)?,
                };
                return Ok((all.freeze(), granted));
            }
            Some(Ok(chunk)) if (all.len() + chunk.len()) as u64 > limit => {
                drop(all);
                skip(&mut stream, limit.saturating_mul(COURTESY)).await;
                return Err(too_large());
            }
            Some(Ok(chunk)) => {
                let since = Instant::now();
                let admitted = async {
                    let begins = granted.is_none() && all.len() + chunk.len() > SMALL;
                    if begins {
                        granted = Some(permit.as_mut().await.map_err(Into::into)?);
                    }
                    let Some(visit) = &visit else { return ApiResult::Ok(()) };
                    if let Some(length) = length.filter(|_| begins) {
                        let rest = length.saturating_sub(all.len() as u64);
                        visit.expect(rest).await?;
                        // A buffer that grows would take up to three times as much on the way.
                        all.reserve(usize::try_from(rest).unwrap_or(0));
                    }
                    // As it comes: not every sender says how long its body is.
                    Ok(visit.read(chunk.len()).await?)
                };
                let admitted = admitted.await;
                // How long it waits for others is not the sender's fault.
                deadline += since.elapsed();
                if let Err(error) = admitted {
                    drop(all);
                    drop(chunk);
                    if let Some(visit) = &visit {
                        visit.settle();
                    }
                    skip(&mut stream, limit).await;
                    return Err(error);
                }
                all.extend_from_slice(&chunk);
            }
            Some(Err(error)) => {
                return Err(ApiError::bad_request("body_broken", format!("the body broke off: {error}")));
            }
        }
    }
}

/// Reads and forgets.
pub(crate) async fn skip(stream: &mut axum::body::BodyDataStream, most: u64) {
    let deadline = Instant::now() + COURTESY_TIME;
    let mut seen = 0_u64;
    while let Ok(Some(Ok(chunk))) = timeout_at(deadline, stream.next()).await {
        seen += chunk.len() as u64;
        if seen > most {
            return;
        }
    }
}

/// Reads a JSON object that came under this content type. Not JSON is 400; JSON of another shape is 422 and names the field.
pub(crate) fn read_json<T: DeserializeOwned>(kind: Option<&HeaderValue>, body: &[u8]) -> ApiResult<T> {
    read_json_of(kind, body, MOST_VALUES)
}

/// Reads a JSON object with at most this many values beside a graph.
pub(crate) fn read_json_of<T: DeserializeOwned>(
    kind: Option<&HeaderValue>,
    body: &[u8],
    most: usize,
) -> ApiResult<T> {
    let kind = kind.and_then(|value| value.to_str().ok());
    let essence = kind.map(|kind| kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    if let Some(essence) = essence
        && essence != "application/json"
        && !essence.ends_with("+json")
    {
        let error = format!("Content-Type is {essence:?}; send application/json");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", error)
            .field("Content-Type"));
    }
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    let Some(&first) = first else {
        return Err(ApiError::bad_request("not_json", "the body is empty; send a JSON object"));
    };
    few_values(body, most)?;
    let mut reader = serde_json::Deserializer::from_slice(body);
    if first != b'{' {
        // Derived types would take a list for an object.
        let any = serde_json::from_slice::<serde::de::IgnoredAny>(body);
        return Err(match any {
            Ok(_) => ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "not_an_object",
                "the body must be a JSON object",
            ),
            Err(error) => not_json(&error),
        });
    }
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        if !error.is_data() {
            return not_json(&error);
        }
        let text = error.to_string();
        let field = match quoted(&text) {
            Some(name) if path == "." || path.is_empty() || path == "?" => name.to_owned(),
            Some(name) if text.starts_with("missing field") || text.starts_with("unknown field") => {
                let inner =
                    path.strip_suffix(name).map_or(path.as_str(), |outer| outer.trim_end_matches('.'));
                if inner.is_empty() || inner == "." { name.to_owned() } else { format!("{inner}.{name}") }
            }
            _ => path,
        };
        let text = if text.contains(&field) { text } else { format!("{field}: {text}") };
        ApiError::invalid(&field, text)
    })?;
    reader.end().map_err(|error| not_json(&error))?;
    Ok(value)
}

/// The parts of a body that stay text, whichever request it is.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, default, alias = "prompt")]
    payload: Option<&'a RawValue>,
    /// Of it the members are looked at, and nothing that is in them.
    #[serde(borrow, default)]
    extra_data: Option<&'a RawValue>,
}

/// Refuses a body with more values beside its graph than this, before any of them is made.
pub(crate) fn few_values(body: &[u8], most: usize) -> ApiResult<()> {
    // A value takes at least two bytes, its comma included.
    let all = if body.len() / 2 < most { 0 } else { count_values(body, usize::MAX) };
    if all <= most {
        return Ok(());
    }
    let within = |part: Option<&RawValue>, kept: usize| {
        let part = part.map_or(&b""[..], |part| part.get().as_bytes());
        count_values(part, usize::MAX) - count_values(part, kept)
    };
    let raw = serde_json::from_slice::<Raw<'_>>(body);
    let text = raw.map_or(0, |raw| within(raw.payload, 0) + within(raw.extra_data, 1));
    if all.saturating_sub(text) <= most {
        return Ok(());
    }
    let error = format!("the body has more than {most} JSON values beside its graph");
    Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "too_many_values", error))
}

fn not_json(error: &serde_json::Error) -> ApiError {
    ApiError::bad_request("not_json", format!("the body is not JSON: {error}"))
}

/// What a message of serde puts between back-ticks first.
fn quoted(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('`')?;
    rest.split_once('`').map(|(name, _)| name)
}

/// How long the client wants to wait for the end: `Prefer: wait=30`. What cannot be understood is no preference.
pub(crate) fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    const MOST: u64 = 600;
    let preferences = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut preferences = preferences.flat_map(|value| value.split([',', ';']));
    preferences.find_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        let seconds: u64 = value.trim().trim_matches('"').parse().ok()?;
        name.trim().eq_ignore_ascii_case("wait").then(|| Duration::from_secs(seconds.min(MOST)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_beside_the_graph() {
        let list = format!("[{}1]", "{\"\":0},".repeat(50));
        let refused = |body: String| few_values(body.as_bytes(), 100).is_err();
        assert!(refused(list.clone()));
        for field in ["metadata", "webhook", "partial_execution_targets", "client_id"] {
            assert!(refused(format!("{{\"{field}\": {list}, \"prompt\": {{}}}}")), "{field}");
        }
        for field in ["prompt", "payload"] {
            assert!(!refused(format!("{{\"{field}\": {list}}}")), "{field}");
            assert!(refused(format!("{{\"{field}\": {list}, \"{field}\": {list}}}")), "{field} twice");
        }
        assert!(!refused(format!("{{\"extra_data\": {{\"extra_pnginfo\": {list}}}}}")));
        let members: String = (0..100).map(|n| format!("\"{n}\":0,")).collect();
        assert!(refused(format!("{{\"extra_data\": {{{members} \"x\": 0}}}}")), "members are made");
    }

    #[test]
    fn a_preference_is_found_among_others() {
        let wait = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", HeaderValue::from_static(text));
            preferred_wait(&headers).map(|wait| wait.as_secs())
        };
        assert_eq!(wait("wait=30"), Some(30));
        assert_eq!(wait("respond-async, Wait = \"5\""), Some(5));
        assert_eq!(wait("wait=99999"), Some(600));
        assert_eq!(wait("wait=soon"), None);
        assert_eq!(wait("return=minimal"), None);
    }
}
