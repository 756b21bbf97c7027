//! Recorded requests, sent again.

use crate::names::Names;
use crate::recording::{Exchange, Outcome, RequestBody};
use crate::{bodies, http};
use std::net::SocketAddr;
use std::time::Duration;

/// Questions whose answer changes while the worker works, and that change nothing themselves.
pub fn depends_on_the_worker(exchange: &Exchange) -> bool {
    let path = exchange.request.path.trim_start_matches("/api");
    exchange.request.method == "GET"
        && ["/history", "/queue", "/prompt", "/jobs"].iter().any(|route| path.starts_with(route))
}

/// Sends a recorded request with the names of this server.
pub async fn send(server: SocketAddr, names: &Names, exchange: &Exchange) -> Result<http::Received, String> {
    let request = &exchange.request;
    let port = server.port();
    // The recorded addresses are those of the server that was recorded.
    let local = |text: &str| {
        ["8188", "8199"]
            .iter()
            .fold(text.to_owned(), |text, old| text.replace(&format!(":{old}"), &format!(":{port}")))
    };
    let mut headers: Vec<(String, String)> =
        request.headers.iter().map(|(name, value)| (name.clone(), local(&names.translate(value)))).collect();
    let body = match &request.body {
        RequestBody::None => bodies::left_out(&exchange.note),
        RequestBody::Json(value) => Some(names.translate_json(value).to_string().into_bytes()),
        RequestBody::Text(text) => Some(names.translate(text).into_bytes()),
        RequestBody::Bytes(bytes) => Some(bytes.clone()),
        RequestBody::Multipart(parts) => {
            let (content_type, body) = bodies::multipart(parts);
            headers.push(("Content-Type".to_owned(), content_type));
            Some(body)
        }
        RequestBody::Raw(_) => unreachable!("raw requests are sent raw"),
    };
    // A request without a body whose method usually has one says so.
    let body = body.or_else(|| (request.method == "POST").then(Vec::new));
    let patience = match exchange.outcome {
        Outcome::Answer(_) => Duration::from_secs(60),
        Outcome::Failure(_) => Duration::from_secs(30),
    };
    http::send(server, &request.method, &names.translate(&request.path), &headers, body.as_deref(), patience)
        .await
}
