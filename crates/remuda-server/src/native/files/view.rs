//! `GET /view`: a file by its name at ComfyUI, wherever it was made and whether or not that worker is still there.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use remuda_core::Tenant;
use remuda_files::FileKey;

use super::find::{self, BadName, Kept, Named};
use super::picture::{self, Channel};
use super::query::Pairs;
use super::rooms;
use crate::access::ReadCaller;
use crate::error::{ApiError, ApiResult};
use crate::routes::{Sendable, send};
use crate::share::{PATIENCE, Visit};
use crate::state::AppState;
use remuda_runner::ask::Driven;

/// What a worker's answer says of its file.
const TOLD: [header::HeaderName; 5] = [
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::ACCEPT_RANGES,
    header::ETAG,
    header::LAST_MODIFIED,
];

/// `preview` is not followed: the picture itself is shown, in its own format. `channel` is.
pub(super) async fn view(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let query = Pairs::of(&uri);
    let Some(name) = query.get("filename") else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    let named = match Named::read(name, query.get("subfolder").unwrap_or_default(), query.get("type")) {
        Ok(named) => named,
        Err(BadName::Name) => return Ok(StatusCode::BAD_REQUEST.into_response()),
        Err(BadName::Folder) => return Ok(StatusCode::FORBIDDEN.into_response()),
    };
    let channel = query.get("channel").and_then(Channel::named);
    if let Some(kept) = find::kept(&state, &caller.tenant, &named).await? {
        return from_files(&state, &caller.tenant, &method, &headers, kept, channel).await;
    }
    let asked = channel.map(Channel::as_str);
    if let Some((workers, query)) = find::at_workers(&state, &caller.tenant, &named, asked).await? {
        for worker in workers {
            if let Some(found) = from_worker(&state, &worker, &method, &query, &headers, &named).await? {
                return Ok(found);
            }
        }
    }
    Ok(StatusCode::NOT_FOUND.into_response())
}

async fn from_files(
    state: &AppState,
    tenant: &Tenant,
    method: &Method,
    headers: &HeaderMap,
    Kept { file, for_ever }: Kept,
    channel: Option<Channel>,
) -> ApiResult<Response> {
    let filename = file.filename.clone();
    let shown = Shown::of(&filename);
    let mut response = match channel {
        Some(channel) => match recoded(state, tenant, &file, channel).await? {
            Some(png) => ([(header::CONTENT_TYPE, "image/png")], png).into_response(),
            // No picture that can be taken apart.
            None => send(state, method, headers, Sendable { mime: shown.mime.clone(), ..file }).await?,
        },
        None => send(state, method, headers, Sendable { mime: shown.mime.clone(), ..file }).await?,
    };
    let told = response.headers_mut();
    shown.describe(told, &filename);
    if !for_ever {
        // An upload can be overwritten.
        told.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    }
    Ok(response)
}

/// One channel of a picture in the file store, if it is a picture that is not too large.
async fn recoded(
    state: &AppState,
    tenant: &Tenant,
    file: &Sendable,
    channel: Channel,
) -> ApiResult<Option<Vec<u8>>> {
    let size = u64::try_from(file.size).unwrap_or(u64::MAX);
    if size > picture::LARGEST {
        return Ok(None);
    }
    let _permit = state.permits.download()?;
    let Some(turn) = rooms::line_up(tenant).await else { return Ok(None) };
    let counted = state.memory.wait(&Visit::guest(), size, PATIENCE).await;
    let counted = counted.map_err(|_| ApiError::no_memory())?;
    let content = state.files.get(&FileKey::parse(&file.key)?, None).await?;
    let bytes = content.bytes(picture::LARGEST).await?;
    let Some(room) = turn.room().await else { return Ok(None) };
    let work = move || {
        let _counted = counted;
        picture::decode(&bytes)?.only(channel).encode()
    };
    Ok(picture::on_a_thread(room, work).await)
}

/// The file of a worker that this process drives; `None` when it has none under this name, or does not answer.
async fn from_worker(
    state: &AppState,
    worker: &Driven,
    method: &Method,
    query: &str,
    headers: &HeaderMap,
    named: &Named,
) -> ApiResult<Option<Response>> {
    let permit = state.permits.download()?;
    let asked = state.catalogue.ask.stream(worker, method.clone(), &["view"], Some(query), headers).await;
    let answer = match asked {
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(worker = %worker.id, %error, "a worker could not be asked for a file");
            return Ok(None);
        }
    };
    let status = answer.status();
    if !matches!(
        status,
        StatusCode::OK
            | StatusCode::PARTIAL_CONTENT
            | StatusCode::NOT_MODIFIED
            | StatusCode::RANGE_NOT_SATISFIABLE
    ) {
        return Ok(None);
    }
    let shown = Shown::of(&named.filename);
    let mut told: HeaderMap = TOLD
        .into_iter()
        .filter_map(|name| answer.headers().get(&name).map(|value| (name, value.clone())))
        .collect();
    // What was recoded has another type than its name says; it is a picture in any case.
    let recoded = answer.headers().get(header::CONTENT_TYPE).filter(|kind| kind.as_bytes() == b"image/png");
    let mime = recoded.cloned().or_else(|| HeaderValue::from_str(&shown.mime).ok());
    told.extend(mime.map(|mime| (header::CONTENT_TYPE, mime)));
    told.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    told.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    shown.describe(&mut told, &named.filename);
    if *method == Method::HEAD {
        return Ok(Some((status, told).into_response()));
    }
    let stream = answer.bytes_stream().map(move |chunk| {
        let _held_to_the_end = &permit;
        chunk.inspect_err(|error| tracing::debug!(%error, "a file of a worker broke off"))
    });
    Ok(Some((status, told, Body::from_stream(stream)).into_response()))
}

/// How a browser is told to treat a file.
struct Shown {
    mime: String,
    /// It is shown as what it is; everything else is saved when somebody follows a link to it.
    media: bool,
    /// It may hold scripts.
    dangerous: bool,
}

impl Shown {
    /// Goes by the name: what the uploader said of the file is not to be trusted.
    fn of(filename: &str) -> Self {
        let mime = mime_guess::from_path(filename).first_or_octet_stream().essence_str().to_owned();
        let active = ["html", "javascript", "ecmascript", "css", "xml"];
        if mime == "image/svg+xml" {
            // A page may show it as a picture, where its scripts do not run.
            return Self { mime, media: false, dangerous: true };
        }
        if active.iter().any(|kind| mime.contains(kind)) {
            return Self { mime: "application/octet-stream".to_owned(), media: false, dangerous: true };
        }
        let media = ["image/", "video/", "audio/"].iter().any(|kind| mime.starts_with(kind));
        Self { mime, media, dangerous: false }
    }

    fn describe(&self, told: &mut HeaderMap, filename: &str) {
        let name: String =
            filename.chars().map(|c| if c.is_control() || c == '"' { '_' } else { c }).collect();
        let how = if self.dangerous { "attachment; " } else { "" };
        let disposition = HeaderValue::from_bytes(format!("{how}filename=\"{name}\"").as_bytes());
        told.insert(
            header::CONTENT_DISPOSITION,
            disposition.unwrap_or_else(|_| HeaderValue::from_static("attachment")),
        );
        if self.media {
            // It would keep films from being played in a window of their own.
            told.remove(header::CONTENT_SECURITY_POLICY);
        } else {
            let policy = HeaderValue::from_static("sandbox; default-src 'none'");
            told.insert(header::CONTENT_SECURITY_POLICY, policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_run_is_saved_and_never_shown() {
        for (name, mime, dangerous) in [
            ("a.png", "image/png", false),
            ("a.mp4", "video/mp4", false),
            ("a.txt", "text/plain", false),
            ("a.json", "application/json", false),
            ("a.latent", "application/octet-stream", false),
            ("a.svg", "image/svg+xml", true),
            ("a.html", "application/octet-stream", true),
            ("a.xhtml", "application/octet-stream", true),
            ("a.js", "application/octet-stream", true),
            ("a.css", "application/octet-stream", true),
            ("a.xml", "application/octet-stream", true),
        ] {
            let shown = Shown::of(name);
            assert_eq!((shown.mime.as_str(), shown.dangerous), (mime, dangerous), "{name}");
        }
    }
}
