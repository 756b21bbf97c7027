//! What was said, in a form that can be compared.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::file::{Recorded, Recording};
use super::json::to_json;
use super::vary::{Ports, settle, settle_metadata};
use crate::journal::{Event, What};

/// A stream that breaks is half-closed and gone in one moment; a client that half-closes it lets it live on.
const MOMENT: Duration = Duration::from_millis(50);

/// Things whose order means something. Between lanes there is no order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// TaskDefs and heartbeats.
    Control,
    /// A stream of a host, both counted from 1.
    Stream(usize, u32),
    /// What was said of a task: its path and guid.
    Task(String),
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lane::Control => f.write_str("TaskDefs and heartbeats"),
            Lane::Stream(host, stream) => write!(f, "stream {stream} of host {host}"),
            Lane::Task(key) => write!(f, "task {key}"),
        }
    }
}

/// One thing that was said.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Whether the client said it.
    pub from_client: bool,
    /// To or from which host, from 1.
    pub host: usize,
    /// What kind of thing: the method, or what happens in a stream.
    pub kind: String,
    /// What was sent with a call.
    pub metadata: BTreeMap<String, String>,
    /// How long the client means to wait, to the nearest ten seconds: some of it passes on the way.
    pub deadline: Option<u64>,
    /// The message, or a refusal.
    pub message: Value,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrow = if self.from_client { ">" } else { "<" };
        write!(f, "{arrow} host {} {} {}", self.host, self.kind, self.message)?;
        if !self.metadata.is_empty() {
            write!(f, " with {:?}", self.metadata)?;
        }
        match self.deadline {
            Some(seconds) => write!(f, " within {seconds} s"),
            None => Ok(()),
        }
    }
}

/// Everything that was said, by lane.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Transcript {
    /// The lanes.
    pub lanes: BTreeMap<Lane, Vec<Line>>,
}

/// A line and where it belongs, before the lanes are made.
struct Said {
    at: Duration,
    lane: Lane,
    line: Line,
}

impl Transcript {
    /// Of a journal.
    pub fn of_journal(events: &[Event]) -> Self {
        let mut ports = Ports::default();
        // A call and its answer are in the same lane; they do not know each other, but calls about one thing do not overlap.
        let mut open: Vec<(usize, crate::journal::Method, Lane)> = Vec::new();
        let mut said = Vec::new();
        for event in events {
            let host = event.host + 1;
            let kind = |what: &str| format!("{}{what}", event.method);
            let in_stream = event.stream.map(|stream| Lane::Stream(host, stream));
            let (from_client, kind, message) = match &event.what {
                What::Call { message, .. } => (true, kind(""), to_json(message)),
                What::Answer(message) => (false, kind(" answer"), to_json(message)),
                What::Refusal { code, .. } => (false, "refusal".to_owned(), refusal(&code_name(*code))),
                What::Open { .. } => (true, kind(" open"), json!({})),
                What::Asked(message) => (true, kind(" ask"), to_json(message)),
                What::Told(message) => (false, kind(" tell"), to_json(message)),
                What::HalfClose => (true, kind(" half-close"), json!({})),
                What::Gone => (true, kind(" gone"), json!({})),
            };
            let message = settle(message, &mut ports);
            let lane = match (in_stream, from_client) {
                (Some(lane), _) => lane,
                (None, true) => {
                    let lane = lane_of(&message);
                    open.push((event.host, event.method, lane.clone()));
                    lane
                }
                (None, false) => {
                    let call = open.iter().position(|(at, of, _)| (*at, *of) == (event.host, event.method));
                    call.map_or(Lane::Control, |call| open.remove(call).2)
                }
            };
            let (metadata, deadline) = match &event.what {
                What::Call { metadata, deadline, .. } | What::Open { metadata, deadline } => {
                    (settle_metadata(metadata), deadline.map(|deadline| tens(deadline.as_secs_f64())))
                }
                _ => Default::default(),
            };
            let line = Line { from_client, host, kind, metadata, deadline, message };
            said.push(Said { at: event.at, lane, line });
        }
        Self::of(said)
    }

    /// Of a recording.
    pub fn of_recording(recording: &Recording) -> Self {
        let mut ports = Ports::default();
        // The last lane of each host that waits for an answer.
        let mut waiting: BTreeMap<usize, Lane> = BTreeMap::new();
        let mut streams = Streams::default();
        let mut said = Vec::new();
        for event in &recording.events {
            let Some(host) = event.server.as_deref().and_then(host_number) else { continue };
            let from_client = event.is_from_client();
            let Some(kind) = kind_of(event) else { continue };
            let message = match &event.code {
                Some(code) => refusal(code),
                None => event.message.clone().unwrap_or_else(|| json!({})),
            };
            let message = settle(message, &mut ports);
            let lane = match event.stream {
                Some(stream) => Lane::Stream(host, streams.number(event, host, stream)),
                None if from_client => {
                    let lane = lane_of(&message);
                    waiting.insert(host, lane.clone());
                    lane
                }
                None => waiting.get(&host).cloned().unwrap_or(Lane::Control),
            };
            let line = Line {
                from_client,
                host,
                kind,
                metadata: settle_metadata(&event.metadata),
                deadline: event.deadline_s.map(tens),
                message,
            };
            said.push(Said { at: Duration::from_secs_f64(event.t), lane, line });
        }
        Self::of(said)
    }

    fn of(said: Vec<Said>) -> Self {
        let mut timed: BTreeMap<Lane, Vec<(Duration, Line)>> = BTreeMap::new();
        for Said { at, lane, line } in said {
            timed.entry(lane).or_default().push((at, line));
        }
        let lanes = timed.into_iter().map(|(lane, lines)| match lane {
            Lane::Control => (lane, without_repeated_heartbeats(lines)),
            Lane::Stream(..) => (lane, without_broken_half_close(lines)),
            Lane::Task(_) => (lane, lines.into_iter().map(|(_, line)| line).collect()),
        });
        Self { lanes: lanes.collect() }
    }

    /// How many lines the client said.
    pub fn said_by_client(&self) -> usize {
        self.lanes.values().flatten().filter(|line| line.from_client).count()
    }

    /// Without the lines that a judge leaves out.
    #[must_use]
    pub fn without(mut self, leave_out: impl Fn(&Lane, &Line) -> bool) -> Self {
        for (lane, lines) in &mut self.lanes {
            lines.retain(|line| !leave_out(lane, line));
        }
        self.lanes.retain(|_, lines| !lines.is_empty());
        self
    }

    /// With every line changed.
    #[must_use]
    pub fn map(mut self, change: impl Fn(&Lane, &mut Line)) -> Self {
        for (lane, lines) in &mut self.lanes {
            for line in lines {
                change(lane, line);
            }
        }
        self
    }
}

/// A server that was restarted counts its streams anew; here they go on.
#[derive(Default)]
struct Streams {
    /// For each server by name and its number, ours.
    numbers: BTreeMap<(String, u32), u32>,
    /// How many streams each host had.
    count: BTreeMap<usize, u32>,
}

impl Streams {
    fn number(&mut self, event: &Recorded, host: usize, stream: u32) -> u32 {
        let key = (event.server.clone().unwrap_or_default(), stream);
        *self.numbers.entry(key).or_insert_with(|| {
            let count = self.count.entry(host).or_default();
            *count += 1;
            *count
        })
    }
}

fn tens(seconds: f64) -> u64 {
    (seconds / 10.0).round() as u64 * 10
}

/// Of a host of LittleHorse: `server-1` or `server-1-restarted`.
fn host_number(server: &str) -> Option<usize> {
    server.strip_prefix("server-")?.split('-').next()?.parse().ok()
}

fn kind_of(event: &Recorded) -> Option<String> {
    let what = match (event.kind.as_str(), event.is_from_client()) {
        ("unary", true) => "",
        ("unary", false) => " answer",
        ("stream-open", _) => " open",
        ("stream-message", true) => " ask",
        ("stream-message", false) => " tell",
        ("stream-half-close", _) => " half-close",
        ("stream-cancelled", _) => " gone",
        ("status", _) => return Some("refusal".to_owned()),
        _ => return None,
    };
    Some(format!("{}{what}", event.method()))
}

/// Where a call belongs: to its task, if it names one.
fn lane_of(message: &Value) -> Lane {
    let itself = message.get("task_guid").is_some().then_some(message);
    match message.get("task_run_id").or_else(|| message.get("task_run")).or(itself) {
        Some(run) => {
            let guid = run.get("task_guid").and_then(Value::as_str).unwrap_or_default();
            Lane::Task(format!("{}/{guid}", path(run.get("wf_run_id").unwrap_or(&Value::Null))))
        }
        None => Lane::Control,
    }
}

fn path(run: &Value) -> String {
    let id = run.get("id").and_then(Value::as_str).unwrap_or_default();
    match run.get("parent_wf_run_id") {
        Some(parent) => format!("{}_{id}", path(parent)),
        None => id.to_owned(),
    }
}

/// Its text is for people, and that of the recordings is not the real server's.
fn refusal(code: &str) -> Value {
    json!({"code": code})
}

/// `AlreadyExists` as `ALREADY_EXISTS`.
fn code_name(code: tonic::Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_uppercase());
    }
    name
}

/// How often a worker gives a sign of life is its own affair: a heartbeat that is answered as before says nothing new.
fn without_repeated_heartbeats(lines: Vec<(Duration, Line)>) -> Vec<Line> {
    let mut kept: Vec<Line> = Vec::new();
    let mut last: Option<(Line, Line)> = None;
    let mut lines = lines.into_iter().map(|(_, line)| line).peekable();
    while let Some(line) = lines.next() {
        let answered = lines.peek().is_some_and(|next| next.kind == "RegisterTaskWorker answer");
        if line.kind != "RegisterTaskWorker" || !answered {
            kept.push(line);
            continue;
        }
        let Some(answer) = lines.next() else { break };
        let pair = (line, answer);
        if last.as_ref() != Some(&pair) {
            kept.extend([pair.0.clone(), pair.1.clone()]);
        }
        last = Some(pair);
    }
    kept
}

fn without_broken_half_close(lines: Vec<(Duration, Line)>) -> Vec<Line> {
    let ends = |line: &Line, how: &str| line.kind.ends_with(how);
    let broken: Vec<bool> = lines
        .iter()
        .zip(lines.iter().skip(1).map(Some).chain([None]))
        .map(|((at, line), next)| {
            ends(line, " half-close")
                && next.is_some_and(|(then, next)| ends(next, " gone") && then.saturating_sub(*at) < MOMENT)
        })
        .collect();
    lines.into_iter().zip(broken).filter(|(_, broken)| !broken).map(|((_, line), _)| line).collect()
}
