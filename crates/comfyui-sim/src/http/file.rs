//! Sending a file: ranges, entity tags, dates, as aiohttp's `FileResponse`.

use super::mime;
use super::reply::{Content, Reply, date, file_part};
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};
use std::io::SeekFrom;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::AsyncSeekExt;

/// Sends a file or says why not. `headers` come first and may name the content type.
pub(crate) async fn send(path: &Path, request: &HeaderMap, headers: HeaderMap) -> Reply {
    let reply = |status, content| {
        let mut reply = Reply::new(status, content);
        reply.headers = headers.clone();
        reply
    };
    let unsent = |status| {
        let plain = Reply::no_file(status);
        let mut reply = reply(status, plain.content);
        // What the caller named stays before what is added.
        for (name, value) in &plain.headers {
            reply.headers.entry(name).or_insert(value.clone());
        }
        reply
    };
    let metadata = match tokio::fs::metadata(path).await {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return unsent(StatusCode::FORBIDDEN);
        }
        Err(_) => return unsent(StatusCode::NOT_FOUND),
    };
    if !metadata.is_file() {
        return unsent(StatusCode::FORBIDDEN);
    }
    let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
    let size = metadata.len();
    let nanos = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let etag = format!("{nanos:x}-{size:x}");
    let quoted = HeaderValue::from_str(&format!("\"{etag}\"")).unwrap_or(HeaderValue::from_static("\"\""));
    match condition(request, &etag, modified) {
        Condition::Send => {}
        Condition::NotModified => {
            return reply(StatusCode::NOT_MODIFIED, Content::Nothing)
                .with(header::ETAG, quoted)
                .with(header::LAST_MODIFIED, date(modified));
        }
        Condition::Failed => {
            return reply(StatusCode::PRECONDITION_FAILED, Content::Bytes(Default::default()));
        }
    }
    let Ok(range) = range(request, size, modified) else {
        let whole = HeaderValue::from_str(&format!("bytes */{size}")).unwrap_or(HeaderValue::from_static(""));
        let chunked = HeaderValue::from_static("chunked");
        return reply(StatusCode::RANGE_NOT_SATISFIABLE, Content::EmptyChunked)
            .with(header::CONTENT_RANGE, whole)
            .with(header::TRANSFER_ENCODING, chunked);
    };
    let (start, count) = range.unwrap_or((0, size));
    let mut file = match tokio::fs::File::open(path).await {
        Ok(file) => file,
        Err(_) => return unsent(StatusCode::NOT_FOUND),
    };
    if start > 0 && file.seek(SeekFrom::Start(start)).await.is_err() {
        return unsent(StatusCode::NOT_FOUND);
    }
    let status = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut reply = reply(status, file_part(file, count));
    let guessed = path.file_name().and_then(|name| mime::guess(&name.to_string_lossy()));
    let guessed = guessed.as_deref().unwrap_or("application/octet-stream");
    reply.headers.entry(header::CONTENT_TYPE).or_insert(
        HeaderValue::from_str(guessed).unwrap_or(HeaderValue::from_static("application/octet-stream")),
    );
    let mut reply = reply
        .with(header::ETAG, quoted)
        .with(header::LAST_MODIFIED, date(modified))
        .with(header::CONTENT_LENGTH, count.into())
        .with(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if range.is_some() {
        let span = format!("bytes {start}-{}/{size}", (start + count).saturating_sub(1));
        reply.headers.insert(
            header::CONTENT_RANGE,
            HeaderValue::from_str(&span).unwrap_or(HeaderValue::from_static("")),
        );
    }
    reply
}

enum Condition {
    Send,
    NotModified,
    Failed,
}

fn condition(request: &HeaderMap, etag: &str, modified: SystemTime) -> Condition {
    let if_match = text(request, header::IF_MATCH);
    if let Some(tags) = if_match
        && !names(tags, etag, false)
    {
        return Condition::Failed;
    }
    if if_match.is_none()
        && let Some(since) = time(request, header::IF_UNMODIFIED_SINCE)
        && modified > since
    {
        return Condition::Failed;
    }
    let if_none_match = text(request, header::IF_NONE_MATCH);
    if let Some(tags) = if_none_match
        && names(tags, etag, true)
    {
        return Condition::NotModified;
    }
    if if_none_match.is_none()
        && let Some(since) = time(request, header::IF_MODIFIED_SINCE)
        && modified <= since
    {
        return Condition::NotModified;
    }
    Condition::Send
}

/// Whether a list of entity tags names this one.
fn names(tags: &str, etag: &str, weak: bool) -> bool {
    if tags.trim() == "*" {
        return true;
    }
    tags.split(',').map(str::trim).any(|tag| {
        let (is_weak, tag) = tag.strip_prefix("W/").map_or((false, tag), |strong| (true, strong));
        (weak || !is_weak) && tag.trim_matches('"') == etag
    })
}

/// First byte and number of bytes, if a part was asked for; an error if it lies outside.
fn range(request: &HeaderMap, size: u64, modified: SystemTime) -> Result<Option<(u64, u64)>, ()> {
    let Some(range) = text(request, header::RANGE) else {
        return Ok(None);
    };
    if let Some(date) = time(request, header::IF_RANGE)
        && modified > date
    {
        return Ok(None);
    }
    let (start, end) = range
        .to_ascii_lowercase()
        .strip_prefix("bytes=")
        .and_then(|range| range.split_once('-').map(|(start, end)| (start.to_owned(), end.to_owned())))
        .ok_or(())?;
    let number = |text: &str| match text {
        "" => Ok(None),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(Some(digits.parse::<u64>().unwrap_or(u64::MAX)))
        }
        _ => Err(()),
    };
    let (start, end) = match (number(&start)?, number(&end)?) {
        (None, None) => return Err(()),
        // The last bytes of the file.
        (None, Some(last)) => (size.saturating_sub(last), size),
        (Some(start), None) => (start, size),
        (Some(start), Some(last)) if start > last => return Err(()),
        (Some(start), Some(last)) => (start, last.saturating_add(1).min(size)),
    };
    if start >= size {
        return Err(());
    }
    Ok(Some((start, end - start)))
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn time(headers: &HeaderMap, name: header::HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(text(headers, name)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_aiohttp_does() {
        let check = |text: &str, expected: Result<Option<(u64, u64)>, ()>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, text.parse().unwrap());
            assert_eq!(range(&headers, 622, UNIX_EPOCH), expected, "{text}");
        };
        check("bytes=0-9", Ok(Some((0, 10))));
        check("bytes=600-", Ok(Some((600, 22))));
        check("bytes=600-9999", Ok(Some((600, 22))));
        check("bytes=-10", Ok(Some((612, 10))));
        check("bytes=-9999", Ok(Some((0, 622))));
        check("bytes=100000-", Err(()));
        check("bytes=5-4", Err(()));
        check("bytes=-", Err(()));
        check("bytes=0-1,3-4", Err(()));
        check("pages=1-2", Err(()));
    }

    #[test]
    fn entity_tags_are_compared() {
        assert!(
            names("\"a-1\"", "a-1", true) && names("W/\"a-1\", \"b\"", "a-1", true) && names("*", "x", false)
        );
        assert!(!names("W/\"a-1\"", "a-1", false) && !names("\"b\"", "a-1", true));
    }
}
