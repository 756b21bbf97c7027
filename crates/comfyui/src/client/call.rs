//! One request: how it is sent, repeated and bounded, and what its failures are called.

use backon::{ExponentialBuilder, Retryable};
use http::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::Client;
use crate::error::{Error, Result};
use crate::lenient;
use crate::limits::{self, Body, ERROR_BODY, REFUSAL_BODY, Route, Unread, VALUES};

/// Body excerpts in errors are cut to this many bytes: enough to read, not enough to flood a log.
const EXCERPT: usize = 2_000;

/// Longer answers are read on a thread that may take its time.
const LARGE: usize = 256 << 10;

/// One request being put together.
#[derive(Clone)]
pub(crate) struct Call {
    pub(super) client: Client,
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) body: Option<bytes::Bytes>,
    pub(super) range: Option<String>,
    pub(super) retry: bool,
    pub(super) route: Route,
}

impl Call {
    pub(crate) fn query(mut self, name: &str, value: &str) -> Self {
        self.url.query_pairs_mut().append_pair(name, value);
        self
    }

    pub(crate) fn json(mut self, body: &impl Serialize) -> Result<Self> {
        let bytes = serde_json::to_vec(body).map_err(|error| Error::Protocol {
            what: format!("{} {}", self.method, self.url.path()),
            detail: format!("the request cannot be written as JSON: {error}"),
        })?;
        self.body = Some(bytes.into());
        Ok(self)
    }

    pub(crate) fn raw_body(mut self, body: bytes::Bytes) -> Self {
        self.body = Some(body);
        self
    }

    pub(crate) fn range(mut self, range: String) -> Self {
        self.range = Some(range);
        self
    }

    /// Says that a repeat of this call is harmless.
    pub(crate) fn repeatable(mut self) -> Self {
        self.retry = true;
        self
    }

    /// Which bound the answer has.
    pub(crate) fn bound(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.method, self.url.path())
    }

    fn method_name(&self) -> &'static str {
        match self.method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::HEAD => "HEAD",
            Method::DELETE => "DELETE",
            Method::PATCH => "PATCH",
            _ => "PUT",
        }
    }

    /// When an answer that is read whole must be there.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.client.inner.timeout
    }

    fn timed_out(&self) -> Error {
        Error::TimedOut { what: self.name(), after: self.client.inner.timeout }
    }

    async fn once(&self, until: Option<Instant>) -> Result<reqwest::Response> {
        let inner = &self.client.inner;
        let mut request = inner.http.request(self.method.clone(), self.url.clone());
        if let Some(body) = &self.body {
            request = request.header(http::header::CONTENT_TYPE, "application/json").body(body.clone());
        }
        if let Some(range) = &self.range {
            request = request.header(http::header::RANGE, range);
        }
        let sending = request.send();
        let sent = match until {
            // Not a timeout of the request: what it waits for others while its body is read does not count.
            Some(until) => timeout_at(until, sending).await.map_err(|_| self.timed_out())?,
            None => sending.await,
        };
        sent.map_err(|error| self.transport(error))
    }

    pub(crate) fn transport(&self, error: reqwest::Error) -> Error {
        if error.is_timeout() && !error.is_connect() {
            return self.timed_out();
        }
        Error::Unreachable {
            url: self.client.url().to_owned(),
            method: self.method_name(),
            path: self.url.path().to_owned(),
            sent: !error.is_connect(),
            source: Box::new(error.without_url()),
        }
    }

    /// Sends, and turns a status that says failure into an error.
    async fn checked(&self, until: Option<Instant>) -> Result<reqwest::Response> {
        let mut response = self.once(until).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        // A page of an error that never ends says nothing more.
        let reading = limits::beginning(&mut response, ERROR_BODY);
        let body = tokio::time::timeout(self.client.inner.timeout, reading).await.unwrap_or_default();
        let body = text_of(&body);
        Err(Error::Status { method: self.method_name(), path: self.url.path().to_owned(), status, body })
    }

    async fn retried<T, F, Fut>(&self, attempt: F) -> Result<T>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let times = if self.retry { self.client.retries } else { 0 };
        let backoff = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(5))
            .with_max_times(times)
            .with_jitter();
        attempt
            .retry(backoff)
            .when(|error| match error {
                Error::Unreachable { .. } | Error::TimedOut { .. } => true,
                Error::Status { status, .. } => {
                    status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
                }
                _ => false,
            })
            .notify(|error, wait| tracing::debug!(call = self.name(), %error, ?wait, "trying again"))
            .await
    }

    /// The answer as raw bytes, whatever its status.
    pub(crate) async fn answer(&self) -> Result<(StatusCode, Body)> {
        let until = self.until();
        let mut response = self.once(Some(until)).await?;
        let status = response.status();
        // The page of a server error is text for people. A refusal counts also where it is too long to be read.
        let body = if status.is_server_error() || status.is_client_error() {
            let most = if status.is_server_error() { ERROR_BODY } else { REFUSAL_BODY };
            let reading = limits::beginning(&mut response, most);
            Body::from(timeout_at(until, reading).await.map_err(|_| self.timed_out())?)
        } else {
            self.body(&mut response, until).await?
        };
        Ok((status, body))
    }

    /// The body of an answer, within its bound.
    pub(crate) async fn body(&self, response: &mut reqwest::Response, until: Instant) -> Result<Body> {
        let limit = self.route.bytes(&self.client.inner.limits);
        let reading = limits::body(response, limit, &self.client.turns, until);
        reading.await.map_err(|unread| match unread {
            Unread::TooSlow => self.timed_out(),
            Unread::TooLarge => self.too_large(limit),
            Unread::Broke(error) => self.transport(error),
        })
    }

    pub(crate) fn too_large(&self, limit: u64) -> Error {
        Error::TooLarge { what: self.name(), limit, unit: "bytes" }
    }

    /// The answer as JSON.
    pub(crate) async fn read<T: DeserializeOwned + Send + 'static>(&self) -> Result<T> {
        let body = self.bytes().await?;
        if body.bytes.len() <= LARGE {
            return self.parse(&body.bytes);
        }
        // A history of megabytes takes its time, and others wait for the runtime's threads.
        let call = self.clone();
        let name = self.name();
        match tokio::task::spawn_blocking(move || call.parse(&body.bytes)).await {
            Ok(read) => read,
            // Only a runtime that ends, or a panic, cancels such work.
            Err(error) => Err(Error::Protocol { what: name, detail: error.to_string() }),
        }
    }

    /// The body of a good answer.
    pub(crate) async fn bytes(&self) -> Result<Body> {
        self.retried(|| async {
            let until = self.until();
            let mut response = self.checked(Some(until)).await?;
            self.body(&mut response, until).await
        })
        .await
    }

    pub(crate) fn parse<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T> {
        // Two bytes of text can become a hundred bytes of value.
        if bytes.len() > VALUES && lenient::count_values(bytes, self.route.depth()) > VALUES {
            return Err(Error::TooLarge { what: self.name(), limit: VALUES as u64, unit: "JSON values" });
        }
        lenient::from_slice(bytes).map_err(|error| Error::Protocol {
            what: self.name(),
            detail: format!(
                "{error}; it begins {:?}",
                excerpt(&String::from_utf8_lossy(&bytes[..bytes.len().min(120)]))
            ),
        })
    }

    /// As [`Call::read`], with 404 as `None`.
    pub(crate) async fn read_if_there<T: DeserializeOwned + Send + 'static>(&self) -> Result<Option<T>> {
        match self.read().await {
            Ok(value) => Ok(Some(value)),
            Err(Error::Status { status: StatusCode::NOT_FOUND, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Only the status matters.
    pub(crate) async fn done(&self) -> Result<()> {
        self.retried(|| async { self.checked(Some(self.until())).await.map(drop) }).await
    }

    /// The answer with its body unread, for streaming.
    pub(crate) async fn stream(&self) -> Result<reqwest::Response> {
        self.retried(|| self.checked(None)).await
    }
}

/// What the beginning of a body says, if it says something.
pub(crate) fn text_of(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * EXCERPT)]);
    (!text.is_empty()).then(|| excerpt(&text))
}

/// The first part of a text, cut at a character boundary.
pub(crate) fn excerpt(text: &str) -> String {
    let text = text.trim();
    if text.len() <= EXCERPT {
        return text.to_owned();
    }
    let end = (0..=EXCERPT).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    format!("{}…", &text[..end])
}
