//! Sending a file: whole or in part, streamed, with what browsers and resuming downloads need.

use std::ops::Range;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use remuda_core::{OutputFile, Sha256};
use remuda_files::FileKey;
use remuda_store::Asset;

use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// What must be escaped in `filename*`, by RFC 5987.
const NOT_ATTR: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'%')
    .add(b'\'')
    .add(b'(')
    .add(b')')
    .add(b'*')
    .add(b',')
    .add(b'/')
    .add(b':')
    .add(b';')
    .add(b'<')
    .add(b'=')
    .add(b'>')
    .add(b'?')
    .add(b'@')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'{')
    .add(b'}');

/// A file that may be sent to whoever asked.
#[derive(Debug)]
pub(crate) struct Sendable {
    pub(crate) key: String,
    pub(crate) filename: String,
    pub(crate) mime: String,
    pub(crate) size: i64,
    pub(crate) sha256: Sha256,
}

impl From<&OutputFile> for Sendable {
    fn from(file: &OutputFile) -> Self {
        Self {
            key: file.key.clone(),
            filename: file.filename.clone(),
            mime: file.mime.clone(),
            size: file.size,
            sha256: file.sha256,
        }
    }
}

impl From<Asset> for Sendable {
    fn from(asset: Asset) -> Self {
        Self {
            key: asset.key,
            filename: asset.filename,
            mime: asset.mime,
            size: asset.size,
            sha256: asset.sha256,
        }
    }
}

pub(crate) async fn send(
    state: &AppState,
    method: &Method,
    asked: &HeaderMap,
    file: Sendable,
) -> ApiResult<Response> {
    let etag = format!("\"{}\"", file.sha256);
    let size = u64::try_from(file.size).unwrap_or(0);
    let mut headers = HeaderMap::new();
    let text =
        |text: String| HeaderValue::from_str(&text).map_err(|error| ApiError::internal(error.to_string()));
    headers.insert(header::ETAG, text(etag.clone())?);
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // The same URL always has the same bytes, for those who may see them.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=31536000, immutable"));
    if names(asked, header::IF_NONE_MATCH, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    let mime = HeaderValue::from_str(&file.mime);
    headers.insert(
        header::CONTENT_TYPE,
        mime.unwrap_or_else(|_| HeaderValue::from_static("application/octet-stream")),
    );
    headers.insert(header::CONTENT_DISPOSITION, text(disposition(&file.filename, &file.mime))?);
    // A file is somebody's content, not a page of ours.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));

    let range = match wanted(asked, &etag, size) {
        Wanted::Whole => None,
        Wanted::Part(range) => Some(range),
        Wanted::Nowhere => {
            let error = ApiError::from(remuda_files::Error::BadRange { size });
            let mut response = error.into_response();
            response.headers_mut().insert(header::CONTENT_RANGE, text(format!("bytes */{size}"))?);
            return Ok(response);
        }
    };
    let status = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let length = range.as_ref().map_or(size, |range| range.end - range.start);
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    if let Some(range) = &range {
        let value = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        headers.insert(header::CONTENT_RANGE, text(value)?);
    }
    if method == Method::HEAD {
        return Ok((status, headers).into_response());
    }

    let permit = state.permits.download()?;
    let key = FileKey::parse(&file.key)?;
    let content = state.files.get(&key, range).await?;
    if content.size != size {
        let log = format!("{key} has {} bytes in the file store and {size} in its record", content.size);
        return Err(ApiError::internal(log));
    }
    let stream = content.stream.map(move |chunk| {
        let _held_to_the_end = &permit;
        chunk.inspect_err(|error| tracing::warn!(%error, "a download broke off"))
    });
    Ok((status, headers, Body::from_stream(stream)).into_response())
}

enum Wanted {
    Whole,
    Part(Range<u64>),
    Nowhere,
}

fn wanted(asked: &HeaderMap, etag: &str, size: u64) -> Wanted {
    let Some(range) = asked.get(header::RANGE).and_then(|value| value.to_str().ok()) else {
        return Wanted::Whole;
    };
    // Somebody who resumes another version gets the whole of this one.
    if asked.contains_key(header::IF_RANGE) && !names(asked, header::IF_RANGE, etag) {
        return Wanted::Whole;
    }
    // What is not understood, and several ranges at once, are answered with the whole, as RFC 9110 allows.
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(|spec| spec.split_once('-')) else {
        return Wanted::Whole;
    };
    let range = match (first.trim(), last.trim()) {
        ("", length) => match length.parse::<u64>() {
            Ok(0) => return Wanted::Nowhere,
            Ok(length) => size.saturating_sub(length)..size,
            Err(_) => return Wanted::Whole,
        },
        (first, "") => match first.parse::<u64>() {
            Ok(first) => first..size,
            Err(_) => return Wanted::Whole,
        },
        (first, last) => match (first.parse::<u64>(), last.parse::<u64>()) {
            (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(size),
            _ => return Wanted::Whole,
        },
    };
    if range.start >= range.end { Wanted::Nowhere } else { Wanted::Part(range) }
}

/// Whether a conditional header names this version.
pub(crate) fn names(headers: &HeaderMap, header: header::HeaderName, etag: &str) -> bool {
    let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag
    })
}

/// Pictures, films and sounds are shown; everything else, and what may hold scripts, is saved.
fn disposition(filename: &str, mime: &str) -> String {
    let shown =
        ["image/", "video/", "audio/"].iter().any(|kind| mime.starts_with(kind)) && !mime.contains("svg");
    let how = if shown { "inline" } else { "attachment" };
    let plain: String = filename
        .chars()
        .map(|c| if c.is_ascii_graphic() && !"\"\\;%".contains(c) || c == ' ' { c } else { '_' })
        .collect();
    format!("{how}; filename=\"{plain}\"; filename*=UTF-8''{}", utf8_percent_encode(filename, NOT_ATTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(range: &'static str) -> Option<(u64, u64)> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_static(range));
        match wanted(&headers, "\"x\"", 100) {
            Wanted::Whole => None,
            Wanted::Part(range) => Some((range.start, range.end)),
            Wanted::Nowhere => Some((0, 0)),
        }
    }

    #[test]
    fn ranges_are_cut_to_the_file_and_nonsense_means_all_of_it() {
        assert_eq!(part("bytes=0-9"), Some((0, 10)));
        assert_eq!(part("bytes=90-"), Some((90, 100)));
        assert_eq!(part("bytes=-10"), Some((90, 100)));
        assert_eq!(part("bytes=-1000"), Some((0, 100)));
        assert_eq!(part("bytes=50-5000"), Some((50, 100)));
        assert_eq!(part("bytes=100-"), Some((0, 0)));
        assert_eq!(part("bytes=-0"), Some((0, 0)));
        for nonsense in ["bytes=0-1,5-6", "lines=1-2", "bytes=9-1", "bytes=a-b", "bytes"] {
            assert_eq!(part(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn names_of_files_cannot_break_the_header() {
        let value = disposition("a\"b;\r\nné.png", "image/png");
        assert_eq!(value, "inline; filename=\"a_b___n_.png\"; filename*=UTF-8''a%22b%3B%0D%0An%C3%A9.png");
        assert!(disposition("x.svg", "image/svg+xml").starts_with("attachment"));
    }
}
