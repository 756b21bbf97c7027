//! The events of one task, or of all of them, over as many connections as it takes.
//!
//! Written by hand: the stream has four kinds of lines, and resuming it, not parsing it, is the work.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use reqwest::Method;
use serde_json::Value;

use super::{Api, ApiError, segment};

/// How often a broken stream is opened again before the command gives up.
const RECONNECTS: u32 = 20;

/// The pause before that.
const PAUSE: Duration = Duration::from_millis(500);

/// What a stream of events brought.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TaskSignal {
    /// `state`, `progress`, `preview`, …
    pub(crate) kind: String,
    pub(crate) data: Value,
}

/// The events of one task from its first one on, or of all tasks, each once.
pub(crate) struct Events {
    api: Api,
    path: String,
    /// Where to begin, if the server is told.
    after: Option<String>,
    /// The stream has no last event: when it ends, there is more at another time.
    endless: bool,
    last: Option<String>,
    stream: Option<BoxStream<'static, Result<Bytes, reqwest::Error>>>,
    buffer: Vec<u8>,
    broken: u32,
}

impl Events {
    pub(crate) fn new(api: Api, task: &str) -> Self {
        Self::at(api, format!("api/v1/tasks/{}/events", segment(task)))
    }

    /// What happens to all tasks, after this event or from now on.
    pub(crate) fn of_all(api: Api, after: Option<String>) -> Self {
        Self { after, endless: true, ..Self::at(api, "api/v1/events".to_owned()) }
    }

    fn at(api: Api, path: String) -> Self {
        let (after, endless, last) = (None, false, None);
        Self { api, path, after, endless, last, stream: None, buffer: Vec::new(), broken: 0 }
    }

    /// The id of the event that came last.
    pub(crate) fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// The next event. `None`: the server ended the stream, as it does after the last one.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<TaskSignal>> {
        loop {
            if let Some(signal) = self.take_block() {
                return Ok(Some(signal));
            }
            if self.stream.is_none() {
                self.open().await?;
            }
            let Some(stream) = &mut self.stream else { continue };
            match stream.try_next().await {
                Ok(Some(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(None) if self.endless => {
                    self.stream = None;
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(None) => return Ok(None),
                // Opened again where it broke; what came in half is sent again.
                Err(_) => self.stream = None,
            }
        }
    }

    async fn open(&mut self) -> anyhow::Result<()> {
        self.buffer.clear();
        loop {
            let mut request = self.api.request(Method::GET, &self.path)?;
            if let Some(last) = &self.last {
                request = request.header("last-event-id", last);
            } else if let Some(after) = &self.after {
                request = request.query(&[("after", after)]);
            }
            match self.api.send(request).await {
                Ok(answer) => {
                    self.stream = Some(answer.bytes_stream().boxed());
                    return Ok(());
                }
                // At first a silent server is a wrong address; later it is one that comes back.
                Err(ApiError::Unreachable { .. }) if self.last.is_some() && self.broken < RECONNECTS => {
                    self.broken += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes one whole event out of the buffer, if there is one.
    fn take_block(&mut self) -> Option<TaskSignal> {
        loop {
            let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")?;
            let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&block);
            let mut kind = "message".to_owned();
            let mut data = String::new();
            for line in text.lines() {
                let (name, value) = line.split_once(':').unwrap_or((line, ""));
                let value = value.strip_prefix(' ').unwrap_or(value);
                match name {
                    "event" => kind = value.to_owned(),
                    "data" => data.push_str(value),
                    "id" => self.last = Some(value.to_owned()),
                    _ => {}
                }
            }
            if !data.is_empty() {
                self.broken = 0;
                let data = serde_json::from_str(&data).unwrap_or(Value::String(data));
                return Some(TaskSignal { kind, data });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_taken_whole_comments_are_left_out_and_ids_remembered() {
        let api = Api::new(&"http://127.0.0.1:1".parse().unwrap(), None).unwrap();
        let mut events = Events::new(api, "x");
        events.buffer = b": hello\n\nid: 3\nevent: state\ndata: {\"status\":\n".to_vec();
        assert_eq!(events.take_block(), None);
        events.buffer.extend_from_slice(b"data: \"running\"}\n\nevent: progress\n");
        let signal = events.take_block().unwrap();
        assert_eq!((signal.kind.as_str(), &signal.data["status"]), ("state", &Value::from("running")));
        assert_eq!(events.last.as_deref(), Some("3"));
        assert_eq!(events.take_block(), None);
    }
}
