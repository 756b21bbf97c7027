//! Plays one recording against a server and collects the differences.
//!
//! What the client did happens again in the recorded order. Nothing waits for the clock where it can wait for
//! a sign: before each action every frame that had come by then in the recording must have come here, too. Answers
//! that depend on how far the worker is are asked for again until they are as recorded or the patience ends.

use crate::compare::{Comparison, Difference};
use crate::frames::Shape;
use crate::names::Names;
use crate::recording::{Exchange, FrameKind, Outcome, Recording, RequestBody};
use crate::server::Server;
use crate::setup::{self, Hook};
use crate::sockets::{Incoming, Seen, Socket};
use crate::{answers, http, requests};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

/// How long a sign is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an answer may be other than recorded while the worker catches up.
const CATCHING_UP: Duration = Duration::from_secs(30);
/// A pause in the recording longer than this (in ms) was there to see that nothing happens.
const DELIBERATE_PAUSE: f64 = 400.0;
/// How long the replay looks for something that must not happen.
const LOOK: Duration = Duration::from_millis(200);

/// Plays it and returns what was different.
pub async fn play(recording: &Recording) -> Vec<Difference> {
    let server =
        Server::start(&recording.version, &recording.server_args, |base| setup::seed_files(recording, base))
            .await;
    let mut names = Names::default();
    names.learn("/srv/comfyui-data", &server.base().to_string_lossy());
    let mut player = Player {
        bumps: setup::counter_bumps(recording),
        recording,
        server,
        names,
        sockets: BTreeMap::new(),
        differences: Vec::new(),
    };
    player.run().await;
    player.differences
}

struct Player<'a> {
    recording: &'a Recording,
    server: Server,
    names: Names,
    bumps: Vec<u64>,
    sockets: BTreeMap<String, Connection>,
    differences: Vec<Difference>,
}

/// A socket and how its frames are compared.
struct Connection {
    /// `None` once it is closed; what it saw is in `seen`.
    socket: Option<Socket>,
    seen: Seen,
    /// The types of frames that the recording kept; `None` is all of them.
    kept: Option<BTreeSet<String>>,
    /// The client named itself, so the server must call it so.
    named: bool,
}

/// Something the client does, in the order of time.
enum Action<'a> {
    Frame(&'a crate::recording::Frame),
    Exchange(usize, &'a Exchange),
}

/// Jobs are listed by the millisecond of their submission, and no two recorded ones share one. Without this a quick
/// machine would leave their order open.
async fn next_millisecond() {
    let now = || {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map(|time| time.as_millis()).ok()
    };
    let begun = now();
    while now() == begun {
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
}

impl Player<'_> {
    async fn run(&mut self) {
        let (first_number, earlier) = setup::earlier_prompts(self.recording);
        if !earlier.is_empty() {
            self.run_earlier(first_number, &earlier).await;
        }
        self.open_unrecorded_sockets().await;
        let mut actions: Vec<(f64, u8, Action<'_>)> = Vec::new();
        for frame in &self.recording.frames {
            if !frame.kind.is_received() {
                actions.push((frame.at, 0, Action::Frame(frame)));
            }
        }
        for (index, exchange) in self.recording.exchanges.iter().enumerate() {
            actions.push((exchange.at, 1, Action::Exchange(index, exchange)));
        }
        actions.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (at, _, action) in actions {
            if !self.catch_up(at).await {
                return;
            }
            match action {
                Action::Frame(frame) => {
                    // A server that goes after the last exchange was made to go.
                    if matches!(frame.kind, FrameKind::Closed)
                        && self.recording.exchanges.iter().all(|exchange| exchange.end < at)
                    {
                        self.run_hooks(self.recording.exchanges.len()).await;
                    }
                    self.act_on_socket(frame).await;
                }
                Action::Exchange(index, exchange) => {
                    self.run_hooks(index).await;
                    self.exchange(index, exchange).await;
                    next_millisecond().await;
                }
            }
        }
        self.compare_sockets().await;
    }

    /// Waits until every frame has come that had come by then.
    async fn catch_up(&mut self, at: f64) -> bool {
        for (name, connection) in &mut self.sockets {
            let before: Vec<Shape> = recorded(self.recording, name, connection, at);
            let (milestones, trailing) = progress(&before);
            let kept = connection.kept.clone();
            let Some(socket) = &mut connection.socket else {
                continue;
            };
            let arrived = socket
                .wait(PATIENCE, |seen| {
                    let (came, steps) = progress(&shapes(&seen.frames, kept.as_ref()));
                    came > milestones || (came == milestones && steps >= trailing)
                })
                .await;
            if !arrived {
                let mut comparison = Comparison::new(format!("socket {name:?} at {at} ms"), &mut self.names);
                let tail = |shapes: &[Shape]| {
                    let from = shapes.len().saturating_sub(6);
                    shapes[from..]
                        .iter()
                        .map(|shape| shape.document.to_string())
                        .collect::<Vec<_>>()
                        .join("\n             ")
                };
                comparison.differ(
                    &format!("frames within {PATIENCE:?}: {milestones} and {trailing} of steps"),
                    tail(&before),
                    tail(&shapes(&socket.seen().frames, connection.kept.as_ref())),
                );
                self.differences.append(&mut comparison.differences);
                return false;
            }
        }
        let ends = self.recording.exchanges.iter().map(|exchange| exchange.end);
        let frames = self.recording.frames.iter().map(|frame| frame.at);
        let last = ends.chain(frames).filter(|time| *time < at).fold(0.0, f64::max);
        if at - last > DELIBERATE_PAUSE {
            tokio::time::sleep(LOOK).await;
        }
        true
    }

    async fn run_hooks(&mut self, index: usize) {
        for hook in setup::hooks(&self.recording.name, index) {
            match hook {
                Hook::RemoveOutput(path) => {
                    let path = self.server.base().join("output").join(path);
                    std::fs::remove_file(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                }
                Hook::Terminate => self.server.terminate().await,
                Hook::Interrupt => self.server.interrupt().await,
                Hook::StartAgain => self.server.start_again().await,
            }
        }
    }

    /// Prompts that had run before the recording began.
    async fn run_earlier(&mut self, first_number: u64, earlier: &[Value]) {
        self.bump(first_number).await;
        for body in earlier {
            let text = body.to_string();
            let answer = self.post_prompt(text.as_bytes()).await;
            let document: Value = serde_json::from_slice(&answer.body).expect("the answer to a submission");
            self.names.learn(
                body["prompt_id"].as_str().unwrap_or_default(),
                document["prompt_id"].as_str().unwrap_or_default(),
            );
            let path = format!("/history/{}", document["prompt_id"].as_str().unwrap_or_default());
            for _ in 0..3000 {
                let answer = http::send(self.server.address, "GET", &path, &[], None, PATIENCE)
                    .await
                    .expect("an answer");
                if answer.body != b"{}" {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        self.bumps.iter_mut().for_each(|bump| *bump = 0);
    }

    /// Sends submissions that are refused but counted.
    async fn bump(&mut self, count: u64) {
        let request = format!(
            "POST /prompt HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}",
            self.server.address
        );
        http::send_many(self.server.address, request.as_bytes(), count as usize).await.expect("answers");
    }

    async fn post_prompt(&mut self, body: &[u8]) -> http::Received {
        let headers = [("Content-Type".to_owned(), "application/json".to_owned())];
        http::send(self.server.address, "POST", "/prompt", &headers, Some(body), PATIENCE)
            .await
            .expect("an answer")
    }

    /// Where only some types of frames were kept, the opening of the socket was not.
    async fn open_unrecorded_sockets(&mut self) {
        let names: BTreeSet<&str> = self.recording.frames.iter().map(|frame| frame.socket.as_str()).collect();
        for name in names {
            let own = || self.recording.frames.iter().filter(|frame| frame.socket == name);
            if own().any(|frame| matches!(frame.kind, FrameKind::Open { .. } | FrameKind::Refused { .. })) {
                continue;
            }
            let kept = own()
                .filter_map(|frame| match &frame.kind {
                    FrameKind::Text(document) => Some(Shape::text(document.clone()).kind),
                    FrameKind::Binary(frame) => Some(Shape::recorded_binary(frame).kind),
                    _ => None,
                })
                .collect();
            self.open(name, &format!("/ws?clientId={name}"), Some(kept)).await;
        }
    }

    async fn open(&mut self, name: &str, path: &str, kept: Option<BTreeSet<String>>) {
        let origin = (name == "ws with own Origin").then(|| format!("http://{}", self.server.address));
        match Socket::open(self.server.address, path, origin.as_deref()).await {
            Ok(mut socket) => {
                // The first frame tells the length of the queue at the moment of the connection.
                socket.wait(PATIENCE, |seen| !seen.frames.is_empty()).await;
                let named = path.split_once("clientId=").is_some_and(|(_, id)| !id.is_empty());
                let connection = Connection { socket: Some(socket), seen: Seen::default(), kept, named };
                self.sockets.insert(name.to_owned(), connection);
            }
            Err(status) => {
                let mut comparison = Comparison::new(format!("socket {name:?}"), &mut self.names);
                comparison.differ("opening", "101", format_args!("{status:?}"));
                self.differences.append(&mut comparison.differences);
            }
        }
    }

    async fn act_on_socket(&mut self, frame: &crate::recording::Frame) {
        let name = frame.socket.as_str();
        match &frame.kind {
            FrameKind::Open { path } => self.open(name, path, None).await,
            FrameKind::Refused { path } => {
                let refused = Socket::open(self.server.address, path, Some("https://example.com"))
                    .await
                    .err()
                    .flatten();
                let mut comparison = Comparison::new(format!("socket {name:?}"), &mut self.names);
                comparison.same("status of the refusal", Some(403), refused);
                self.differences.append(&mut comparison.differences);
            }
            FrameKind::SendText(text) => self.send(name, Message::text(self.names.translate(text))).await,
            FrameKind::SendBinary(bytes) => self.send(name, Message::binary(bytes.clone())).await,
            FrameKind::SendPing(bytes) => {
                self.send(name, Message::Ping(bytes.clone().into())).await;
                if let Some(Connection { socket: Some(socket), .. }) = self.sockets.get_mut(name)
                    && !socket.wait(PATIENCE, |seen| seen.pongs > 0).await
                {
                    let mut comparison = Comparison::new(format!("socket {name:?}"), &mut self.names);
                    comparison.differ("answer to a ping", "pong", "nothing");
                    self.differences.append(&mut comparison.differences);
                }
            }
            FrameKind::Closing => {
                let last = self
                    .recording
                    .frames
                    .iter()
                    .filter(|other| other.socket == name && other.kind.is_received());
                let last = last.map(|other| other.at).fold(0.0, f64::max);
                if frame.at - last > LOOK.as_secs_f64() * 250.0 {
                    tokio::time::sleep(LOOK / 2).await;
                }
                if let Some(connection) = self.sockets.get_mut(name)
                    && let Some(mut socket) = connection.socket.take()
                {
                    connection.seen = socket.seen();
                    socket.close(PATIENCE).await;
                }
            }
            FrameKind::Closed => {
                let closed = match self.sockets.get_mut(name) {
                    Some(Connection { socket: Some(socket), .. }) => {
                        socket.wait(PATIENCE, |seen| seen.closed.is_some()).await;
                        socket.seen().closed
                    }
                    _ => None,
                };
                let mut comparison = Comparison::new(format!("socket {name:?}"), &mut self.names);
                comparison.same("close code when the server goes", Some(1006), closed);
                self.differences.append(&mut comparison.differences);
            }
            _ => {}
        }
    }

    async fn send(&mut self, name: &str, message: Message) {
        if let Some(Connection { socket: Some(socket), .. }) = self.sockets.get(name) {
            socket.send(message).await;
        }
    }

    async fn exchange(&mut self, index: usize, exchange: &Exchange) {
        if self.bumps[index] > 0 {
            self.bump(self.bumps[index]).await;
        }
        let request = &exchange.request;
        let place = format!("exchange {index} {} {} ({})", request.method, request.path, exchange.note);
        let mut differences = Vec::new();
        let asked_at = tokio::time::Instant::now();
        loop {
            let mut comparison = Comparison::new(&place, &mut self.names);
            match &exchange.outcome {
                Outcome::Answer(expected) if expected.raw.is_some() => {
                    let RequestBody::Raw(raw) = &request.body else {
                        panic!("{place}: not recorded as it was sent")
                    };
                    answers::compare_raw(&mut comparison, self.server.address, raw, expected).await;
                }
                outcome => {
                    let result = requests::send(self.server.address, comparison.names, exchange).await;
                    match (outcome, result) {
                        (Outcome::Answer(expected), Ok(got)) => {
                            answers::compare(&mut comparison, request, expected, &got)
                        }
                        (Outcome::Failure(_), Err(error)) if !error.starts_with("no answer within") => {}
                        (Outcome::Answer(expected), Err(error)) => {
                            comparison.differ("status", expected.status, error)
                        }
                        (Outcome::Failure(kind), Ok(got)) => comparison.differ("status", kind, got.status),
                        (Outcome::Failure(kind), Err(error)) => comparison.differ("failure", kind, error),
                    }
                }
            }
            std::mem::swap(&mut differences, &mut comparison.differences);
            if differences.is_empty()
                || !requests::depends_on_the_worker(exchange)
                || asked_at.elapsed() > CATCHING_UP
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.differences.append(&mut differences);
    }

    async fn compare_sockets(&mut self) {
        self.catch_up(f64::INFINITY).await;
        if self.sockets.values().any(|connection| connection.socket.is_some()) {
            tokio::time::sleep(LOOK).await;
        }
        for (name, connection) in &mut self.sockets {
            if let Some(socket) = &connection.socket {
                connection.seen = socket.seen();
            }
            let mut comparison = Comparison::new(format!("socket {name:?}"), &mut self.names);
            let mut got = Vec::new();
            for frame in &connection.seen.frames {
                match Shape::incoming(frame) {
                    Ok(shape) => got.push(shape),
                    Err(fault) => comparison.differ("frame", "a frame as ComfyUI writes it", fault),
                }
            }
            got.retain(|shape| connection.kept.as_ref().is_none_or(|kept| kept.contains(&shape.kind)));
            let mut expected = recorded(self.recording, name, connection, f64::INFINITY);
            for shape in &mut expected {
                shape.document = comparison.names.translate_json(&shape.document);
            }
            if !connection.named
                && let (Some(expected), Some(got)) = (expected.first_mut(), got.first())
                && let Some(sid) = got.document["data"]["sid"].as_str()
                && sid.len() == 32
                && expected.document["data"]["sid"].is_string()
            {
                // The server invents the name of a client that has none.
                expected.document["data"]["sid"] = json!(sid);
            }
            crate::frames::compare(&mut comparison, expected, got);
            self.differences.append(&mut comparison.differences);
        }
    }
}

/// The recorded frames of one socket before a moment.
fn recorded(recording: &Recording, name: &str, connection: &Connection, before: f64) -> Vec<Shape> {
    let frames = recording.frames.iter().filter(|frame| frame.socket == name && frame.at < before);
    let shapes = frames.filter_map(|frame| match &frame.kind {
        FrameKind::Text(document) => Some(Shape::text(document.clone())),
        FrameKind::TextRaw(text) => Some(Shape::text_raw(text)),
        FrameKind::Binary(frame) => Some(Shape::recorded_binary(frame)),
        _ => None,
    });
    shapes.filter(|shape| connection.kept.as_ref().is_none_or(|kept| kept.contains(&shape.kind))).collect()
}

fn shapes(frames: &[Incoming], kept: Option<&BTreeSet<String>>) -> Vec<Shape> {
    let shapes = frames.iter().filter_map(|frame| Shape::incoming(frame).ok());
    shapes.filter(|shape| kept.is_none_or(|kept| kept.contains(&shape.kind))).collect()
}

/// Number of frames that are not steps inside a node, and of the steps after the last of them.
fn progress(shapes: &[Shape]) -> (usize, usize) {
    let milestones = shapes.iter().filter(|shape| !shape.is_step()).count();
    (milestones, shapes.iter().rev().take_while(|shape| shape.is_step()).count())
}
