//! Remuda's API as a client sees it: any server will do, and an answer that does not come is asked for again.

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use jiff::Timestamp;
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

/// A server that is stopped accepts connections and says nothing.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest silence in a stream of events before it is opened again elsewhere.
const QUIET: Duration = Duration::from_secs(10);
/// More than any answer here; a server that sends more is wrong.
const LARGEST: usize = 64 * 1024 * 1024;

/// A task as the API shows it, as far as it is checked.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TaskView {
    pub(crate) id: String,
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) error_class: Option<String>,
    #[serde(default)]
    pub(crate) result: Option<ResultView>,
    #[serde(default)]
    pub(crate) attempts: Vec<AttemptView>,
}

impl TaskView {
    pub(crate) fn is_terminal(&self) -> bool {
        is_terminal(&self.status)
    }

    pub(crate) fn files(&self) -> &[FileView] {
        self.result.as_ref().map_or(&[], |result| &result.files)
    }
}

/// Whether a state, or an event, is an end.
pub(crate) fn is_terminal(name: &str) -> bool {
    matches!(name, "completed" | "failed" | "cancelled")
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ResultView {
    #[serde(default)]
    pub(crate) files: Vec<FileView>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct FileView {
    pub(crate) url: String,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) sha256: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct AttemptView {
    pub(crate) n: i64,
    #[serde(default)]
    pub(crate) worker: Option<String>,
    #[serde(default)]
    pub(crate) prompt_id: Option<String>,
    #[serde(default)]
    pub(crate) outcome: Option<String>,
    #[serde(default)]
    pub(crate) error_class: Option<String>,
    pub(crate) started_at: Timestamp,
    #[serde(default)]
    pub(crate) ended_at: Option<Timestamp>,
}

/// One event of one task, as the stream tells it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EventView {
    pub(crate) n: i64,
    /// `submitted`, `claimed`, …
    pub(crate) kind: String,
    pub(crate) data: Value,
}

/// What a server said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).with_context(|| format!("strange answer: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).chars().take(2_000).collect()
    }

    /// Whether the same request may be answered otherwise later.
    pub(crate) fn is_temporary(&self) -> bool {
        self.status == 429 || self.status >= 500
    }
}

/// All servers of one installation.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    http: reqwest::Client,
    servers: Vec<String>,
    key: Option<String>,
}

impl Api {
    pub(crate) fn new(servers: Vec<String>, key: Option<String>) -> Result<Api> {
        let http = reqwest::Client::builder().connect_timeout(Duration::from_secs(2)).build()?;
        Ok(Api { http, servers, key })
    }

    fn request(&self, server: usize, method: Method, path: &str) -> reqwest::RequestBuilder {
        let url = format!("{}{path}", self.servers[server % self.servers.len()]);
        let request = self.http.request(method, url);
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Asks one server, once.
    pub(crate) async fn ask(&self, server: usize, method: Method, path: &str) -> Result<Answer> {
        self.send(self.request(server, method, path)).await
    }

    /// Submits to one server, once.
    pub(crate) async fn submit(&self, server: usize, key: &str, body: &Value) -> Result<Answer> {
        let request = self.request(server, Method::POST, "/api/v1/tasks");
        let request = request.header("content-type", "application/json").header("idempotency-key", key);
        self.send(request.body(body.to_string())).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Answer> {
        let answer = request.timeout(PATIENCE).send().await?;
        let status = answer.status().as_u16();
        let mut body = Vec::new();
        let mut pieces = answer.bytes_stream();
        while let Some(piece) = pieces.next().await {
            body.extend_from_slice(&piece?);
            if body.len() > LARGEST {
                bail!("an answer of more than {LARGEST} bytes");
            }
        }
        Ok(Answer { status, body })
    }

    /// The events of a task after `after`, each handed to `take`, until the stream ends or breaks.
    /// Whether it came to a proper end.
    pub(crate) async fn events(
        &self,
        server: usize,
        task: &str,
        after: i64,
        mut take: impl FnMut(EventView),
    ) -> Result<bool> {
        let mut request = self.request(server, Method::GET, &format!("/api/v1/tasks/{task}/events"));
        if after > 0 {
            request = request.header("last-event-id", after.to_string());
        }
        let answer = tokio::time::timeout(PATIENCE, request.send()).await??;
        if !answer.status().is_success() {
            bail!("{} for the events of {task}", answer.status());
        }
        let mut pieces = answer.bytes_stream();
        let mut blocks = Blocks::default();
        loop {
            let Ok(piece) = tokio::time::timeout(QUIET, pieces.next()).await else { return Ok(false) };
            let Some(piece) = piece else { return Ok(true) };
            blocks.add(&piece?);
            while let Some(event) = blocks.next() {
                take(event);
            }
        }
    }
}

/// Takes events out of a stream of bytes.
#[derive(Debug, Default)]
struct Blocks {
    bytes: Vec<u8>,
}

impl Blocks {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next numbered event; what has no number (progress, comments) is left out.
    fn next(&mut self) -> Option<EventView> {
        loop {
            let end = self.bytes.windows(2).position(|pair| pair == b"\n\n")?;
            let block: Vec<u8> = self.bytes.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&block);
            let field = |name: &str| {
                text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| *key == name)
            };
            let value = |name: &str| field(name).map(|(_, value)| value.trim().to_owned());
            let (Some(n), Some(data)) = (value("id").and_then(|id| id.parse().ok()), value("data")) else {
                continue;
            };
            let data: Value = serde_json::from_str(&data).unwrap_or(Value::String(data));
            let named = ["kind", "event"].iter().find_map(|name| data[*name].as_str().map(str::to_owned));
            let kind = named.or_else(|| value("event")).unwrap_or_default();
            return Some(EventView { n, kind, data });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_events_are_taken_whole() {
        let mut blocks = Blocks::default();
        blocks.add(b": hello\n\nevent: progress\ndata: {}\n\nid: 3\nevent: state\ndata: {\"kind\":\"clai");
        assert_eq!(blocks.next(), None);
        blocks.add(b"med\"}\n\n");
        let event = blocks.next().unwrap();
        assert_eq!((event.n, event.kind.as_str()), (3, "claimed"));
        assert_eq!(blocks.next(), None);
    }
}
