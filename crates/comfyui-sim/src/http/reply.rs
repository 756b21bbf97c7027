//! What goes back to the client, in the order and with the spelling that aiohttp uses.

use crate::engine::Answer;
use crate::hub::Hold;
use crate::json::Json;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use hyper::ext::ReasonPhrase;
use std::io;
use std::time::SystemTime;
use tokio::io::{AsyncReadExt, Take};
use tokio_util::io::ReaderStream;

/// The body type of every answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

const SERVER: HeaderValue = HeaderValue::from_static("Python/3.11 aiohttp/3.14.5");
const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const FILE_CHUNK: usize = 256 * 1024;

/// An answer that has not been written yet.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    /// In the order in which they are sent.
    pub(crate) headers: HeaderMap,
    pub(crate) content: Content,
    /// The handler raised: middleware that adds to answers does not see it.
    pub(crate) raised: bool,
    close: bool,
    /// Dropped when the answer has been written.
    hold: Option<Hold>,
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Content {
    /// Nothing at all, not even a length (204, 304).
    Nothing,
    /// Known bytes, also none of them.
    Bytes(Bytes),
    /// Part of a file, read while it is sent.
    File(Take<tokio::fs::File>),
    /// An empty body in chunks: aiohttp's way for files that it does not send.
    EmptyChunked,
    /// Another protocol follows.
    Upgrade,
}

impl Reply {
    pub(crate) fn new(status: StatusCode, content: Content) -> Self {
        Self { status, headers: HeaderMap::new(), content, raised: false, close: false, hold: None }
    }

    /// A status with an empty body.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self::new(status, Content::Bytes(Bytes::new()))
    }

    /// A document.
    pub(crate) fn json(status: StatusCode, value: &Json) -> Self {
        Self::bytes(status, JSON, value.dump().into())
    }

    /// Plain text.
    pub(crate) fn text(status: StatusCode, text: impl Into<String>) -> Self {
        Self::bytes(status, TEXT, text.into().into())
    }

    /// Bytes of some type.
    pub(crate) fn bytes(status: StatusCode, content_type: HeaderValue, bytes: Bytes) -> Self {
        Self::new(status, Content::Bytes(bytes)).with(header::CONTENT_TYPE, content_type)
    }

    /// A refusal that aiohttp makes by raising: text with the status, as in `404: Not Found`.
    pub(crate) fn raise(status: StatusCode) -> Self {
        Self::raise_text(status, format!("{}: {}", status.as_u16(), reason(status)))
    }

    /// The same with a text of its own.
    pub(crate) fn raise_text(status: StatusCode, text: impl Into<String>) -> Self {
        let mut reply = Self::text(status, text);
        reply.raised = true;
        reply
    }

    /// The body is larger than the server takes.
    pub(crate) fn too_large(limit: u64) -> Self {
        Self::raise_text(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("Maximum request body size {limit} exceeded."),
        )
    }

    /// The page of a handler that failed. The connection is closed after it.
    pub(crate) fn trouble() -> Self {
        Self::trouble_with(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The same page for another status, which only faults ask for.
    pub(crate) fn trouble_with(status: StatusCode) -> Self {
        let reason = reason(status);
        let mut reply =
            Self::raise_text(status, format!("{} {reason}\n\nServer got itself in trouble", status.as_u16()));
        reply.close = true;
        reply
    }

    /// A file that is not there, as the route for static files answers.
    pub(crate) fn no_such_file() -> Self {
        Self::no_file(StatusCode::NOT_FOUND)
    }

    /// A file that is not sent for another reason.
    pub(crate) fn no_file(status: StatusCode) -> Self {
        let octets = HeaderValue::from_static("application/octet-stream");
        Self::new(status, Content::EmptyChunked)
            .with(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"))
            .with(header::CONTENT_TYPE, octets)
    }

    /// Adds a header.
    #[must_use]
    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Lets the messages that a request caused wait for its answer.
    #[must_use]
    pub(crate) fn holding(mut self, hold: Hold) -> Self {
        self.hold = Some(hold);
        self
    }

    /// Writes it down for hyper.
    pub(crate) fn into_response(self) -> Response<Body> {
        let Self { status, mut headers, content, close, hold, .. } = self;
        let body = match content {
            Content::Nothing | Content::Upgrade => empty(),
            Content::Bytes(bytes) => {
                set_length(&mut headers, bytes.len() as u64);
                Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
            }
            Content::File(file) => {
                headers.entry(header::CONTENT_LENGTH).or_insert(file.limit().into());
                StreamBody::new(
                    ReaderStream::with_capacity(file, FILE_CHUNK).map(|chunk| chunk.map(Frame::data)),
                )
                .boxed_unsync()
            }
            Content::EmptyChunked => StreamBody::new(stream::empty()).boxed_unsync(),
        };
        let body = match hold {
            // The mapping goes with the body, which hyper drops when it has taken all of it.
            Some(hold) => body
                .map_frame(move |frame| {
                    let _ = &hold;
                    frame
                })
                .boxed_unsync(),
            None => body,
        };
        headers.insert(header::DATE, date(SystemTime::now()));
        headers.insert(header::SERVER, SERVER);
        if close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response.extensions_mut().insert(ReasonPhrase::from_static(reason(status).as_bytes()));
        response
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        let status = |code: u16| StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        match answer {
            Answer::Json(code, value) => Self::json(status(code), &value),
            Answer::Empty(code) => Self::empty(status(code)),
            Answer::Trouble => Self::trouble(),
        }
    }
}

/// The phrase behind a status, with the words of Python 3.11 where they are older than those of today.
fn reason(status: StatusCode) -> &'static str {
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => "Request Entity Too Large",
        StatusCode::URI_TOO_LONG => "Request-URI Too Long",
        StatusCode::RANGE_NOT_SATISFIABLE => "Requested Range Not Satisfiable",
        status => status.canonical_reason().unwrap_or("Unknown"),
    }
}

/// A part of a file as content.
pub(crate) fn file_part(file: tokio::fs::File, length: u64) -> Content {
    Content::File(file.take(length))
}

/// A body without bytes.
pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A time as HTTP writes it.
pub(crate) fn date(time: SystemTime) -> HeaderValue {
    // The text is ASCII whatever the time is.
    HeaderValue::from_str(&httpdate::fmt_http_date(time)).unwrap_or(HeaderValue::from_static(""))
}

fn set_length(headers: &mut HeaderMap, length: u64) {
    headers.insert(header::CONTENT_LENGTH, length.into());
}
