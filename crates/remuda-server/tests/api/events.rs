//! `GET /api/v1/tasks/{id}/events`.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use remuda_core::FailureClass;
use remuda_frames::{Frame, FrameKind};
use reqwest::Response;
use serde_json::Value;

use crate::support::{BOUND, Gateway, json};

/// One event: its id, its name, its data.
pub(crate) type Event = (Option<String>, String, Value);

/// Reads events one by one.
pub(crate) struct Reader {
    stream: futures_util::stream::BoxStream<'static, Result<Bytes, reqwest::Error>>,
    buffer: String,
}

impl Reader {
    pub(crate) fn new(answer: Response) -> Self {
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self { stream: answer.bytes_stream().boxed(), buffer: String::new() }
    }

    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        tokio::time::timeout(BOUND, self.read()).await.expect("an event or the end in time")
    }

    async fn read(&mut self) -> Option<Event> {
        loop {
            while let Some(end) = self.buffer.find("\n\n") {
                let block: String = self.buffer.drain(..end + 2).collect();
                let field = |name: &str| {
                    block.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).map(str::to_owned)
                };
                if let Some(data) = field("data") {
                    let data = serde_json::from_str(&data).unwrap();
                    return Some((field("id"), field("event").unwrap(), data));
                }
            }
            let piece = self.stream.next().await?.ok()?;
            self.buffer.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }

    /// The names of the states until the end, with their numbers.
    pub(crate) async fn states(&mut self) -> Vec<(String, String)> {
        let mut states = Vec::new();
        while let Some((id, name, data)) = self.next().await {
            if name == "state" {
                states.push((id.unwrap(), data["kind"].as_str().unwrap().to_owned()));
            }
        }
        states
    }
}

pub(crate) fn progress(fraction: f64) -> FrameKind {
    FrameKind::Progress {
        fraction,
        node: Some("3".to_owned()),
        value: 1.0,
        max: 4.0,
        nodes_done: 1,
        nodes: 7,
    }
}

fn numbered(states: &[&str]) -> Vec<(String, String)> {
    states.iter().enumerate().map(|(n, kind)| ((n + 1).to_string(), (*kind).to_owned())).collect()
}

#[tokio::test]
async fn states_and_progress_come_as_they_happen_and_the_stream_ends_with_the_task() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let path = format!("/api/v1/tasks/{id}/events");
    let mut reader = Reader::new(gateway.get(&format!("{path}?preview=true")).send().await.unwrap());
    let (number, name, data) = reader.next().await.unwrap();
    assert_eq!((number.as_deref(), name.as_str(), &data["status"]), (Some("1"), "state", &"pending".into()));

    let mut worker = gateway.worker().await;
    worker.gateway = Some(gateway.url.clone());
    let claim = worker.claim().await;
    let (number, _, data) = reader.next().await.unwrap();
    assert_eq!(
        (number.as_deref(), &data["kind"], &data["status"]),
        (Some("2"), &"claimed".into(), &"running".into())
    );
    assert_eq!(data["data"]["worker"], "gpu-1");

    // The last frame is kept for a reader that begins to listen a little later.
    let frame = |what| Frame { task: claim.task.id, attempt: 1, what };
    gateway.hub.publish(frame(progress(0.25)));
    let (number, name, data) = reader.next().await.unwrap();
    assert_eq!(
        (number, name.as_str(), &data["fraction"], &data["node"]),
        (None, "progress", &0.25.into(), &"3".into())
    );
    gateway.hub.publish(frame(FrameKind::Preview {
        mime: "image/jpeg".to_owned(),
        bytes: Bytes::from_static(b"\xff\xd8"),
    }));
    let (_, name, data) = reader.next().await.unwrap();
    assert_eq!(
        (name.as_str(), &data["mime"], &data["data"]),
        ("preview", &"image/jpeg".into(), &"/9g=".into())
    );

    worker.complete(&claim, b"x").await;
    let (number, _, data) = reader.next().await.unwrap();
    assert_eq!((number.as_deref(), &data["status"]), (Some("3"), &"completed".into()));
    assert_eq!(reader.next().await, None);

    // From any point, exactly what came after it.
    let all = numbered(&["submitted", "claimed", "completed"]);
    for known in 0..3 {
        let answer = gateway.get(&path).header("Last-Event-ID", known.to_string()).send().await.unwrap();
        assert_eq!(Reader::new(answer).states().await, all[known..]);
        let answer = gateway.get(&format!("{path}?after={known}")).send().await.unwrap();
        assert_eq!(Reader::new(answer).states().await, all[known..]);
    }
    let answer = gateway.get(&path).header("Last-Event-ID", "3").send().await.unwrap();
    assert_eq!(answer.status(), 204);
    for wrong in ["4", "-1", "x"] {
        let error = json(gateway.get(&path).header("Last-Event-ID", wrong).send().await.unwrap(), 400).await;
        assert_eq!(error["field"], "Last-Event-ID");
    }
}

#[tokio::test]
async fn a_reader_that_breaks_off_and_resumes_again_and_again_sees_every_state_once() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let path = format!("/api/v1/tasks/{id}/events");
    let working = async {
        let worker = gateway.worker().await;
        for _ in 0..3 {
            let claim = worker.claim().await;
            gateway.store().give_back(claim.lease.owner, claim.lease.reference(), None).await.unwrap();
        }
        let claim = worker.claim().await;
        worker.fail(&claim, FailureClass::Validation, "no").await;
    };
    let reading = async {
        let mut seen: Vec<(String, String)> = Vec::new();
        loop {
            let last = seen.last().map_or("0", |(n, _)| n).to_owned();
            let answer = gateway.get(&path).header("Last-Event-ID", last).send().await.unwrap();
            if answer.status() == 204 {
                return seen;
            }
            // One event, and the connection is dropped.
            if let Some((Some(n), _, data)) = Reader::new(answer).next().await {
                seen.push((n, data["kind"].as_str().unwrap().to_owned()));
            }
        }
    };
    let (seen, ()) = tokio::join!(reading, working);
    let expected = [
        "submitted",
        "claimed",
        "returned",
        "claimed",
        "returned",
        "claimed",
        "returned",
        "claimed",
        "failed",
    ];
    assert_eq!(seen, numbered(&expected));
}

#[tokio::test]
async fn a_silent_stream_shows_signs_of_life() {
    // Longer than the pause between two looks into the store, which must not put it off.
    let gateway =
        Gateway::start_with(|options| options.limits.heartbeat = Duration::from_millis(1_300)).await;
    let id = gateway.submit().await;
    let answer = gateway.get(&format!("/api/v1/tasks/{id}/events")).send().await.unwrap();
    let mut pieces = answer.bytes_stream();
    let alive = async {
        let mut text = String::new();
        while text.matches(": still here\n\n").count() < 2 {
            text.push_str(std::str::from_utf8(&pieces.next().await.unwrap().unwrap()).unwrap());
        }
    };
    tokio::time::timeout(BOUND, alive).await.expect("two signs of life");
}
