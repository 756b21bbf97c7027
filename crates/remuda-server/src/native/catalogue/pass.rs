//! Passing on what a worker has: the first of several that has it answers, and its answer is streamed.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use crate::error::{ApiError, ApiResult};
use crate::state::AppState;
use remuda_runner::ask::{Driven, is_segment};

/// What is passed back of a worker's answer.
const PASSED_BACK: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::ACCEPT_RANGES,
    header::ETAG,
    header::LAST_MODIFIED,
    header::CACHE_CONTROL,
];

/// The longest name that a file system has.
const LONGEST_NAME: usize = 255;

/// The longest path that is asked for.
const LONGEST_PATH: usize = 2048;

/// Shuts a page of a worker in: it comes from our own origin, and must not act with the rights of whoever opens it.
const SHUT: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'");

/// The same for servers that show ComfyUI's page, whose extensions open pages of their own: scripts run, as those of a
/// stranger.
const STRANGER: HeaderValue =
    HeaderValue::from_static("sandbox allow-scripts allow-forms; frame-ancestors 'self'");

/// Scripts are left alone: as the script of a page or of a worker thread they would be bound by it. Opened as a page a
/// script is only text.
fn fence_in(headers: &mut HeaderMap, frontend: bool) {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let script =
        matches!(kind.as_str(), "text/javascript" | "application/javascript" | "application/x-javascript");
    if !script {
        let policy = if frontend { STRANGER } else { SHUT };
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    if kind.is_empty() {
        // It is nobody's guess.
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    }
}

/// Asks one worker after the other, until one has it. 404 when none has; 503 when one could not be asked and no other
/// has it.
pub(super) async fn pass_on(
    state: &AppState,
    workers: &[Driven],
    method: &Method,
    segments: &[&str],
    query: Option<&str>,
    asked: &HeaderMap,
) -> ApiResult<Response> {
    // A worker would be asked for something else than what it was checked for.
    if !segments.iter().all(|segment| is_segment(segment))
        || segments.iter().any(|segment| segment.contains(['/', '\\']) || segment.len() > LONGEST_NAME)
        || segments.iter().map(|segment| segment.len() + 1).sum::<usize>() > LONGEST_PATH
    {
        return Ok(StatusCode::NOT_FOUND.into_response());
    }
    let permit = state.permits.download()?;
    let mut silent = None;
    for worker in workers {
        if state.catalogue.ask.rests(&worker.id) {
            silent = Some(worker);
            continue;
        }
        match state.catalogue.ask.stream(worker, method.clone(), segments, query, asked).await {
            Ok(answer) if answer.status().is_success() || answer.status() == StatusCode::NOT_MODIFIED => {
                let mut headers = HeaderMap::new();
                for name in PASSED_BACK {
                    if let Some(value) = answer.headers().get(&name) {
                        headers.insert(name, value.clone());
                    }
                }
                headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
                fence_in(&mut headers, state.frontend.is_some());
                let (status, worker) = (answer.status(), worker.id.clone());
                if method == Method::HEAD {
                    return Ok((status, headers).into_response());
                }
                let stream = answer.bytes_stream().map(move |piece| {
                    let _held_to_the_end = &permit;
                    piece.inspect_err(|error| tracing::warn!(%worker, %error, "a file of a worker broke off"))
                });
                return Ok((status, headers, Body::from_stream(stream)).into_response());
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(worker = %worker.id, path = segments.join("/"), %error, "a worker could not be asked");
                silent = Some(worker);
            }
        }
    }
    match silent {
        None => Ok(StatusCode::NOT_FOUND.into_response()),
        Some(worker) => {
            let error = format!("worker {} does not answer: try again in a moment", worker.id);
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "worker_silent", error).retry_after(5))
        }
    }
}
