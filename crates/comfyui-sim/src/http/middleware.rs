//! What happens around every handler: origin check or CORS, gzip, cache headers.

use super::call::Call;
use super::reply::{Content, Reply};
use crate::config::SimConfig;
use flate2::{Compression, write::GzEncoder};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Paths that ComfyUI takes for pictures.
const PICTURES: [&str; 9] = [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// The answer that is given before any handler is asked: to OPTIONS, and to pages from elsewhere.
pub(crate) fn before(call: &Call) -> Option<Reply> {
    if call.life.config.cors.is_none() && foreign(call.headers()) {
        return Some(Reply::empty(StatusCode::FORBIDDEN));
    }
    (call.parts.method == Method::OPTIONS).then(|| Reply::empty(StatusCode::OK))
}

/// What is added to the answer of a handler.
pub(crate) fn after(reply: Reply, config: &SimConfig, path: &str, accepts_gzip: bool) -> Reply {
    if reply.raised || matches!(reply.content, Content::Upgrade) {
        return reply;
    }
    let mut reply = reply;
    if let Some(origin) = &config.cors {
        let fixed = HeaderValue::from_static;
        let headers = [
            (header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_str(origin).unwrap_or(fixed("*"))),
            (header::ACCESS_CONTROL_ALLOW_METHODS, fixed("POST, GET, DELETE, PUT, OPTIONS, PATCH")),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, fixed("Content-Type, Authorization")),
            (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, fixed("true")),
        ];
        reply.headers.extend(headers.map(|(name, value): (HeaderName, HeaderValue)| (Some(name), value)));
    }
    if config.compress && accepts_gzip {
        reply = compressed(reply);
    }
    if let Some(cache) = cache_control(path, reply.status, &reply.content) {
        reply.headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static(cache));
    }
    reply
}

fn compressed(mut reply: Reply) -> Reply {
    let content_type =
        reply.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let kind = content_type.split(';').next().unwrap_or_default();
    if !matches!(kind, "application/json" | "text/plain") {
        return reply;
    }
    if let Content::Bytes(bytes) = &reply.content
        && !bytes.is_empty()
    {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        // Writing into memory cannot fail; if it did, the answer would go out as it is.
        if let Ok(packed) = encoder.write_all(bytes).and_then(|()| encoder.finish()) {
            reply.headers.insert(header::CONTENT_LENGTH, packed.len().into());
            reply.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            reply.content = Content::Bytes(packed.into());
        }
    }
    reply
}

fn cache_control(path: &str, status: StatusCode, content: &Content) -> Option<&'static str> {
    let file = path.rsplit('/').next().unwrap_or_default();
    let entry_point = file.starts_with("index") && file.ends_with(".json");
    if path.ends_with(".js") || path.ends_with(".css") || entry_point {
        return Some("no-cache");
    }
    let path = path.to_ascii_lowercase();
    if !PICTURES.iter().any(|ending| path.ends_with(ending)) {
        return None;
    }
    // Whether a file is there turns out only when it is sent, after this decision.
    let sent_as_file = matches!(content, Content::File(_) | Content::EmptyChunked | Content::Nothing);
    match status {
        _ if sent_as_file => Some("public, max-age=86400"),
        StatusCode::NOT_FOUND => Some("public, max-age=3600"),
        status if status.is_success() => Some("public, max-age=86400"),
        _ => None,
    }
}

/// Whether a page from another origin asks a server on this machine.
fn foreign(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let (Some(host), Some(origin)) = (text(header::HOST), text(header::ORIGIN)) else {
        return false;
    };
    let host = Authority::parse(host);
    let origin = Authority::parse(origin.split_once("//").map_or("", |(_, rest)| rest));
    let host_side = if origin.port.is_none() { &host.name } else { &host.whole };
    let origin_side = if host.port.is_none() { &origin.name } else { &origin.whole };
    is_loopback(&host.name) && !host_side.is_empty() && !origin_side.is_empty() && host_side != origin_side
}

/// The part of a URL between `//` and the path.
struct Authority {
    whole: String,
    name: String,
    port: Option<u16>,
}

impl Authority {
    fn parse(text: &str) -> Self {
        let whole = text.split(['/', '?', '#']).next().unwrap_or_default().to_ascii_lowercase();
        let address = whole.rsplit('@').next().unwrap_or_default();
        let (name, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, rest)) => (name, rest.strip_prefix(':')),
            None => match address.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (address, None),
            },
        };
        Self { name: name.to_owned(), port: port.and_then(|port| port.parse().ok()), whole }
    }
}

/// The real one asks the resolver; `localhost` is the only name that every machine has.
fn is_loopback(host: &str) -> bool {
    match host.parse() {
        Ok(IpAddr::V4(address)) => Ipv4Addr::is_loopback(&address),
        Ok(IpAddr::V6(address)) => Ipv6Addr::is_loopback(&address),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_judged_as_recorded() {
        let check = |host: &str, origin: Option<&str>, expected: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            assert_eq!(foreign(&headers), expected, "{host} {origin:?}");
        };
        let here = "127.0.0.1:8188";
        check(here, None, false);
        check(here, Some("http://127.0.0.1:8188"), false);
        check(here, Some("https://example.com"), true);
        check(here, Some("null"), false);
        check(here, Some("http://localhost:8188"), true);
        check(here, Some("http://127.0.0.1:3000"), true);
        check(here, Some("http://127.0.0.1"), false);
        check("comfy.example.com", Some("https://evil.example.com"), false);
        check("localhost:8188", Some("https://example.com"), true);
        check("[::1]:8188", Some("http://[::1]:8188"), false);
        check("[::1]:8188", Some("http://[::1]:1"), true);
        check("localhost", Some("http://localhost:3000"), false);
    }

    #[test]
    fn only_static_looking_paths_are_cached() {
        let bytes = Content::Bytes(bytes::Bytes::new());
        assert_eq!(cache_control("/view", StatusCode::OK, &bytes), None);
        assert_eq!(cache_control("/scripts/app.js", StatusCode::OK, &bytes), Some("no-cache"));
        assert_eq!(cache_control("/templates/index.de.json", StatusCode::OK, &bytes), Some("no-cache"));
        let missing = cache_control("/sub/x.PNG", StatusCode::NOT_FOUND, &Content::EmptyChunked);
        assert_eq!(missing, Some("public, max-age=86400"));
    }
}
