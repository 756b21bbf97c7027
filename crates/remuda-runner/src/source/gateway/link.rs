//! Requests to a gateway, and what their answers mean.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use remuda_core::{ApiKey, OwnerId};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use super::super::SourceError;
use remuda_sidecar as sidecar;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// How long an answer may take, beyond what the request asks to wait.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// Tasks with large graphs come in one answer; nothing that a gateway says is larger than this.
const LARGEST_ANSWER: usize = 256 << 20;

/// The longest pause before a request is repeated.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Why a request was not answered with success.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Nobody was reached, so nothing was done.
    Unsent(String),
    /// It may have been done.
    Doubtful(String),
    /// It was refused, and nothing was done.
    Refused(SourceError),
}

impl From<Trouble> for SourceError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Unsent(why) | Trouble::Doubtful(why) => Self::Unavailable(why),
            Trouble::Refused(error) => error,
        }
    }
}

/// One request without a stream in it, so that it can be sent again.
#[derive(Debug)]
pub(super) struct Ask {
    method: Method,
    url: Url,
    body: Option<(&'static str, Bytes)>,
    limit: Duration,
}

/// A gateway, or several behind one address.
#[derive(Debug)]
pub(super) struct Link {
    http: Client,
    base: Url,
}

impl Link {
    pub(super) fn new(server: &Url, key: Option<&ApiKey>, owner: OwnerId) -> Result<Self, String> {
        if !matches!(server.scheme(), "http" | "https") || server.host_str().is_none() {
            return Err(format!(
                "{server} is not the address of a server: http://… or https://… is expected"
            ));
        }
        let mut headers = HeaderMap::new();
        let owner = HeaderValue::from_str(&owner.to_string()).map_err(|error| error.to_string())?;
        headers.insert(sidecar::OWNER, owner);
        if let Some(key) = key {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.reveal()))
                .map_err(|_| "the key has characters that no key has".to_owned())?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut builder = Client::builder()
            .connect_timeout(CONNECT)
            .default_headers(headers)
            // The key goes to the address that was named, and nowhere else.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("remuda/", env!("CARGO_PKG_VERSION")));
        if matches!(server.host_str(), Some("localhost" | "127.0.0.1" | "[::1]")) {
            // No proxy of this machine's environment leads back to it.
            builder = builder.no_proxy();
        }
        if server.scheme() == "http" {
            // A container without certificates is no obstacle to plain HTTP.
            builder = builder.tls_certs_only([]);
        }
        let http =
            builder.build().map_err(|error| format!("no HTTP client can be made: {}", causes(&error)))?;
        let mut base = server.clone();
        base.set_query(None);
        base.set_fragment(None);
        Ok(Self { http, base })
    }

    /// The address of a route: every segment stays one, whatever is in it.
    pub(super) fn url(&self, segments: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(["api", "v1", "worker"]).extend(segments);
        }
        url
    }

    pub(super) fn get(&self, segments: &[&str], query: &impl Serialize) -> Result<Ask, SourceError> {
        let url = with_query(self.url(segments), query)?;
        Ok(Ask { method: Method::GET, url, body: None, limit: ANSWER })
    }

    pub(super) fn delete(&self, segments: &[&str], query: &impl Serialize) -> Result<Ask, SourceError> {
        Ok(Ask { method: Method::DELETE, ..self.get(segments, query)? })
    }

    pub(super) fn post(&self, path: &str, body: &impl Serialize) -> Result<Ask, SourceError> {
        let body = serde_json::to_vec(body)
            .map_err(|error| SourceError::Refused(format!("{path} cannot be written as JSON: {error}")))?;
        let body = Some(("application/json", body.into()));
        Ok(Ask { method: Method::POST, url: self.url(&[path]), body, limit: ANSWER })
    }

    pub(super) fn send_bytes(
        &self,
        method: Method,
        segments: &[&str],
        mime: &'static str,
        body: Bytes,
    ) -> Ask {
        Ask { method, url: self.url(segments), body: Some((mime, body)), limit: ANSWER }
    }

    pub(super) fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.http.request(method, url)
    }

    /// One try. The answer's head has come, and says success.
    pub(super) async fn open(&self, ask: &Ask) -> Result<Response, Trouble> {
        let mut request = self.http.request(ask.method.clone(), ask.url.clone());
        if let Some((mime, body)) = &ask.body {
            request = request.header("content-type", *mime).body(body.clone());
        }
        match tokio::time::timeout(ask.limit, request.send()).await {
            Ok(Ok(response)) => self.check(response).await,
            Ok(Err(error)) => Err(self.unanswered(&error)),
            Err(_) => Err(Trouble::Doubtful(self.silent(ask.limit))),
        }
    }

    /// One try, with the whole answer. Empty when there is none (204).
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Bytes, Trouble> {
        let answer = async {
            let response = self.open(ask).await?;
            self.body(response).await
        };
        // Large answers may take their time; they may not take for ever.
        let limit = ask.limit + ANSWER;
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(Trouble::Doubtful(self.silent(limit))),
        }
    }

    /// A whole answer, as long as it has an end.
    pub(super) async fn body(&self, mut response: Response) -> Result<Bytes, Trouble> {
        let mut body = BytesMut::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > LARGEST_ANSWER => {
                    return Err(Trouble::Doubtful(format!("{} answers without an end", self.base)));
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => return Ok(body.freeze()),
                Err(error) => return Err(self.unanswered(&error)),
            }
        }
    }

    /// Tries until it is answered, for at most `patience`: a gateway that restarts, or another one behind the same
    /// address. Only for what may be repeated as it was.
    pub(super) async fn repeat(&self, ask: &Ask, patience: Duration) -> Result<Bytes, SourceError> {
        let mut backoff = Backoff::new(patience);
        loop {
            match self.ask(ask).await {
                Err(trouble @ (Trouble::Unsent(_) | Trouble::Doubtful(_))) => {
                    if !backoff.pause().await {
                        return Err(trouble.into());
                    }
                    tracing::debug!(url = %ask.url, ?trouble, "asking the gateway again");
                }
                answer => return Ok(answer?),
            }
        }
    }

    /// What the answer says; something else than what was expected says nothing.
    pub(super) fn read<T: DeserializeOwned>(&self, answer: &[u8]) -> Result<T, SourceError> {
        serde_json::from_slice(answer).map_err(|error| {
            SourceError::Unavailable(format!("{} does not answer as a Remuda does: {error}", self.base))
        })
    }

    /// Turns every answer but a success into what it means.
    pub(super) async fn check(&self, response: Response) -> Result<Response, Trouble> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        // An error page of somebody in between may be of any size.
        let mut body = Vec::new();
        let mut response = response;
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk);
            if body.len() > 64 << 10 {
                break;
            }
        }
        Err(self.refusal(status, &body))
    }

    fn refusal(&self, status: StatusCode, body: &[u8]) -> Trouble {
        let problem: Option<sidecar::Problem> =
            serde_json::from_slice(body).ok().filter(|problem: &sidecar::Problem| !problem.error.is_empty());
        let words = |problem: Option<sidecar::Problem>| match problem {
            Some(problem) => format!("the gateway {} answered {status}: {}", self.base, problem.error),
            None => format!("{} answered {status}, and not as a Remuda does", self.base),
        };
        match (status, problem) {
            (StatusCode::CONFLICT, Some(problem)) if problem.code.as_deref() == Some(sidecar::FENCED) => {
                Trouble::Refused(SourceError::Fenced)
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, problem) => {
                let hint = "a key with the scope `worker` is needed";
                Trouble::Refused(SourceError::Refused(format!("{} ({hint})", words(problem))))
            }
            (StatusCode::PAYLOAD_TOO_LARGE, problem) => {
                Trouble::Refused(SourceError::Refused(words(problem)))
            }
            (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS, problem) => {
                Trouble::Doubtful(words(problem))
            }
            // What is wrong is the way here, not the request.
            (_, Some(problem))
                if problem.code.as_deref().is_some_and(|code| sidecar::BROKEN.contains(&code)) =>
            {
                Trouble::Doubtful(words(Some(problem)))
            }
            (status, Some(problem)) if status.is_client_error() => {
                Trouble::Refused(SourceError::Refused(words(Some(problem))))
            }
            // Also a 404 in the words of a proxy, which says nothing about what a gateway would say.
            (_, problem) => Trouble::Doubtful(words(problem)),
        }
    }

    pub(super) fn unanswered(&self, error: &reqwest::Error) -> Trouble {
        let why = format!("{}: {}", self.base, causes(error));
        if error.is_connect() || error.is_builder() { Trouble::Unsent(why) } else { Trouble::Doubtful(why) }
    }

    pub(super) fn silent(&self, limit: Duration) -> String {
        format!("{} did not answer within {limit:?}", self.base)
    }
}

impl Ask {
    /// The answer must begin within this time.
    pub(super) fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Gives the answer this much time more.
    pub(super) fn waiting(mut self, wait: Duration) -> Self {
        self.limit += wait;
        self
    }
}

pub(super) fn with_query(mut url: Url, query: &impl Serialize) -> Result<Url, SourceError> {
    let fields = serde_json::to_value(query).map_err(|error| SourceError::Refused(error.to_string()))?;
    let mut pairs = url.query_pairs_mut();
    for (name, value) in fields.as_object().into_iter().flatten() {
        match value {
            serde_json::Value::String(text) => pairs.append_pair(name, text),
            other => pairs.append_pair(name, &other.to_string()),
        };
    }
    drop(pairs);
    if url.query() == Some("") {
        url.set_query(None);
    }
    Ok(url)
}

/// An error with all its reasons: the outermost mostly only says that a request failed.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text
}

/// Pauses that grow, until patience ends.
#[derive(Debug)]
pub(super) struct Backoff {
    end: tokio::time::Instant,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(patience: Duration) -> Self {
        Self { end: tokio::time::Instant::now() + patience, next: Duration::from_millis(100) }
    }

    /// Waits. `false`, at once, when there is no time left for another try.
    pub(super) async fn pause(&mut self) -> bool {
        let pause = self.next.mul_f64(rand::random_range(0.75..1.25));
        if tokio::time::Instant::now() + pause >= self.end {
            return false;
        }
        tokio::time::sleep(pause).await;
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        true
    }
}
