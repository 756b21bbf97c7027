//! A gateway in this process, for the targets that fuzz what is only reached through its routes.
//!
//! Requests pass everything that they pass in the real server, except the reading of their heads. An answer of 500 is a
//! finding: a handler that panics is answered so.

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::BodyExt;
use remuda_core::OwnerId;
use remuda_files::{Files, Location};
use remuda_frames::FrameHub;
use remuda_server::{ServerOptions, fuzzing};
use remuda_store::{Options, SqliteStore};
use std::sync::{Arc, LazyLock};
use tokio::runtime::Runtime;
use tower::ServiceExt;
use uuid::Uuid;

/// Where requests come from: before there are keys, this machine is served.
const PEER: &str = "127.0.0.1:40000";

struct Gateway {
    runtime: Runtime,
    router: Router,
    /// Removed with the process.
    _folder: tempfile::TempDir,
}

static GATEWAY: LazyLock<Gateway> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let router = runtime.block_on(async {
        let owner = OwnerId(Uuid::new_v4());
        let store = SqliteStore::open(&folder.path().join("remuda.db"), Options::new(owner)).await;
        let files =
            Files::open(&Location::directory(folder.path().join("files"))).expect("a place for files");
        let options = ServerOptions::new(Arc::new(store.expect("a store")), files, FrameHub::default());
        fuzzing::router(options)
    });
    Gateway { runtime, router, _folder: folder }
});

/// An answer, read whole.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Vec<u8>,
}

/// What the gateway answers to a request of this machine; one without a host is for localhost.
///
/// # Panics
/// When the answer is a 5xx that no request may cause: that is the finding.
pub fn answer(mut request: Request<Body>) -> Answer {
    let described = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
    request.headers_mut().entry("host").or_insert(HeaderValue::from_static("localhost"));
    let request = fuzzing::from(request, PEER.parse().expect("an address"));
    let gateway = &*GATEWAY;
    let answer = gateway.runtime.block_on(async {
        let answer = gateway.router.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    });
    let text = String::from_utf8_lossy(&answer.body);
    assert!(
        answer.status < 500 || matches!(answer.status, 503 | 507),
        "{} for {described}: {text}",
        answer.status
    );
    answer
}

/// The answer to a `GET`; `None` if this cannot be a target.
pub fn get(target: &str, headers: &[(&'static str, &[u8])]) -> Option<Answer> {
    let mut request = Request::get(target).body(Body::empty()).ok()?;
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_bytes(value).ok()?);
    }
    Some(answer(request))
}

/// The answer to a `POST`; `None` if this cannot be a request.
pub fn post(target: &str, kind: &str, body: Vec<u8>) -> Option<Answer> {
    let request = Request::post(target).header("content-type", kind).body(Body::from(body)).ok()?;
    Some(answer(request))
}

/// Bytes as a part of a target: everything that is not plain in percent form.
pub fn encoded(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(*byte))
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

/// A form with one file and one field.
pub fn form(field: (&str, &str), filename: &str, file: &[u8]) -> Vec<u8> {
    let mut body = format!(
        "--b\r\nContent-Disposition: form-data; name=\"{}\"\r\n\r\n{}\r\n--b\r\nContent-Disposition: form-data; \
         name=\"image\"; filename=\"{filename}\"\r\n\r\n",
        field.0, field.1
    )
    .into_bytes();
    body.extend_from_slice(file);
    body.extend_from_slice(b"\r\n--b--\r\n");
    body
}
