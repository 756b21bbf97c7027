//! One prompt as its client sees it, put together from what ComfyUI says of one attempt after the other.
//!
//! Whatever happens behind it, the client sees one prompt that begins once and ends once, under its own name. Files are
//! told of at the end only: before that nobody can say that they will ever be there.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use remuda_core::{AttemptNo, TaskId, Timestamp};
use remuda_frames::{Frame, FrameKind};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::mailbox::Picture;
use super::words;
use crate::native::names;

/// How many messages of an attempt are remembered, so that they are not told twice.
const REMEMBERED: usize = 4096;

/// ComfyUI's own names of a prompt; more than a few would be somebody else's.
const NAMES: usize = 4;

/// ComfyUI's names are UUIDs, with hyphens or without. What is shorter could be any word of a message.
const SHORTEST_NAME: usize = 32;

/// How many states of progress may wait behind a held message …
const MOST_BEHIND: usize = 64;

/// … and how many bytes of them.
const BEHIND_BYTES: usize = 1 << 20;

/// What is longer is not taken apart when it is heard: as values it would take up to a hundred times that room. It is told at the
/// end, from the record.
const LONGEST_READ: usize = 64 << 10;

/// The longest id of a node that is remembered, and how many are.
const LONGEST_NODE: usize = 1024;
const NODES: usize = 20_000;

/// What a client is told.
#[derive(Debug, PartialEq)]
pub(super) enum Word {
    Text(String),
    Picture(Picture),
    /// How many of its prompts have not ended.
    Status,
}

/// An `executed` that names files.
#[derive(Debug)]
pub(super) struct Held {
    /// The later it was heard, the later it is told.
    pub(super) order: u64,
    pub(super) display_node: Value,
}

/// One prompt as its client sees it.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) task: TaskId,
    /// What the client calls it.
    pub(super) name: String,
    attempt: AttemptNo,
    /// What it is called at ComfyUI.
    inner_names: Vec<String>,
    started: bool,
    cached: bool,
    /// Another listener hears the same attempt: what it says again is not told again.
    again: bool,
    seen: HashSet<u64>,
    /// The last `progress` and the last `progress_state`.
    last: [u64; 2],
    pub(super) held: HashMap<String, Held>,
    /// How many were held so far.
    held_so_far: u64,
    /// What came right behind the last held one, and must not overtake it if the end is next.
    pub(super) behind: VecDeque<String>,
    /// Nodes whose outputs were told, and a hash of what they were.
    told: HashMap<String, u64>,
    /// For sockets that get pictures behind their steps.
    plain: Option<Picture>,
    /// The node at work, and those before it.
    pub(super) node: Option<String>,
    pub(super) done: Vec<String>,
    /// How ComfyUI told the end of this attempt: type and data.
    pub(super) inner_end: Option<(String, Value)>,
}

#[derive(Deserialize)]
struct Head {
    prompt_id: Option<String>,
}

#[derive(Deserialize)]
struct Executed {
    node: String,
    #[serde(default)]
    display_node: Value,
    #[serde(default)]
    output: Value,
}

/// One that is not taken apart.
#[derive(Deserialize)]
struct Long<'a> {
    node: String,
    #[serde(borrow, default)]
    display_node: Option<&'a RawValue>,
}

impl From<Long<'_>> for Executed {
    fn from(long: Long<'_>) -> Self {
        let shown = long.display_node.filter(|text| text.get().len() <= LONGEST_NODE);
        let display_node = shown.and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default();
        Self { node: long.node, display_node, output: Value::Null }
    }
}

impl Story {
    pub(super) fn new(task: TaskId, name: String) -> Self {
        Self {
            task,
            name,
            attempt: 0,
            inner_names: Vec::new(),
            started: false,
            cached: false,
            again: false,
            seen: HashSet::new(),
            last: [0; 2],
            held: HashMap::new(),
            held_so_far: 0,
            behind: VecDeque::new(),
            told: HashMap::new(),
            plain: None,
            node: None,
            done: Vec::new(),
            inner_end: None,
        }
    }

    /// Whether its client knows that it began.
    pub(super) fn has_begun(&self) -> bool {
        self.started
    }

    /// Whether nothing more is to be heard of the attempt.
    pub(super) fn is_over(&self) -> bool {
        self.inner_end.is_some()
    }

    pub(super) fn attempt(&self) -> AttemptNo {
        self.attempt
    }

    /// From now on this attempt is listened to, which has this name at ComfyUI.
    pub(super) fn listen(&mut self, attempt: AttemptNo, name: Option<String>) {
        if attempt == self.attempt {
            self.again = true;
        } else {
            self.turn_to(attempt);
        }
        name.into_iter().for_each(|name| self.call(name));
    }

    /// It is called so at ComfyUI.
    pub(super) fn call(&mut self, name: String) {
        if !self.inner_names.contains(&name) {
            self.inner_names.push(name);
        }
    }

    fn turn_to(&mut self, attempt: AttemptNo) {
        self.attempt = attempt;
        self.again = false;
        self.inner_names.clear();
        self.seen.clear();
        self.held.clear();
        self.behind.clear();
        self.done.clear();
        (self.plain, self.node, self.inner_end) = (None, None, None);
    }

    /// What the client is told when ComfyUI says this.
    pub(super) fn hear(&mut self, frame: &Frame, out: &mut Vec<Word>) {
        if frame.attempt < self.attempt {
            return;
        }
        if frame.attempt > self.attempt {
            self.turn_to(frame.attempt);
        }
        match &frame.what {
            FrameKind::Message { kind, data } => self.hear_message(kind, data, out),
            FrameKind::Binary { event, bytes } => {
                out.extend(self.plain.take().map(Word::Picture));
                let (first, second) = words::picture(*event, bytes, |label| self.renamed(label));
                out.push(Word::Picture(first));
                self.plain = second;
            }
            FrameKind::Progress { .. } | FrameKind::Preview { .. } => {}
        }
    }

    fn hear_message(&mut self, kind: &str, data: &str, out: &mut Vec<Word>) {
        if let Ok(Head { prompt_id: Some(name) }) = serde_json::from_str(data)
            && !self.inner_names.contains(&name)
            && name.len() >= SHORTEST_NAME
            && self.inner_names.len() < NAMES
        {
            self.inner_names.push(name);
        }
        if self.is_repeated(kind, data) {
            return;
        }
        let text = words::message(kind, self.renamed(data));
        let picture = self.plain.take().map(Word::Picture);
        if kind == "progress" {
            self.hear_kind(kind, data, text, out);
            out.extend(picture);
        } else {
            out.extend(picture);
            self.hear_kind(kind, data, text, out);
        }
    }

    fn hear_kind(&mut self, kind: &str, data: &str, text: String, out: &mut Vec<Word>) {
        match kind {
            // Of the ComfyUI, not of the prompt.
            "status" | "feature_flags" => {}
            "execution_start" => {
                self.let_pass(out);
                if !std::mem::replace(&mut self.started, true) {
                    out.extend([Word::Status, Word::Text(text)]);
                }
            }
            "execution_cached" => {
                self.start(out);
                if !std::mem::replace(&mut self.cached, true) {
                    out.push(Word::Text(text));
                }
            }
            "executing" => {
                let node: Option<Value> = serde_json::from_str(data).ok();
                // Without a node it is the end, which is told from the store.
                let node = node.and_then(|data| data["node"].as_str().map(str::to_owned));
                if let Some(node) = node {
                    self.let_pass(out);
                    self.begin(out);
                    self.done.extend(self.node.replace(node));
                    out.push(Word::Text(text));
                } else {
                    self.inner_end.get_or_insert_with(|| (kind.to_owned(), Value::Null));
                }
            }
            "executed" => self.hear_executed(data, out),
            "execution_success" | "execution_error" | "execution_interrupted"
                if data.len() > LONGEST_READ =>
            {
                self.inner_end = Some((kind.to_owned(), Value::Null));
            }
            "execution_success" | "execution_error" | "execution_interrupted" => {
                let end: Value = serde_json::from_str(&self.renamed(data)).unwrap_or_default();
                // A blocked branch is an error in the middle, and the prompt goes on.
                if end["exception_type"] == "ExecutionBlocked" {
                    self.let_pass(out);
                    self.begin(out);
                    out.push(Word::Text(text));
                } else {
                    self.inner_end = Some((kind.to_owned(), end));
                }
            }
            "progress_state" if !self.held.is_empty() => {
                self.begin(out);
                // Each tells of all nodes, so that the later ones say what the earlier ones did.
                self.behind.push_back(text);
                let mut bytes: usize = self.behind.iter().map(String::len).sum();
                while self.behind.len() > MOST_BEHIND || (bytes > BEHIND_BYTES && self.behind.len() > 1) {
                    bytes -= self.behind.pop_front().map_or(0, |first| first.len());
                }
            }
            "progress_state" => {
                self.begin(out);
                out.push(Word::Text(text));
            }
            _ => {
                self.let_pass(out);
                out.push(Word::Text(text));
            }
        }
    }

    /// The end is not next: what waited behind a held one goes on.
    fn let_pass(&mut self, out: &mut Vec<Word>) {
        out.extend(self.behind.drain(..).map(Word::Text));
    }

    fn hear_executed(&mut self, data: &str, out: &mut Vec<Word>) {
        let is_long = data.len() > LONGEST_READ;
        let executed = match is_long {
            false => serde_json::from_str::<Executed>(&self.renamed(data)),
            true => serde_json::from_str::<Long<'_>>(data).map(Executed::from),
        };
        let Ok(Executed { node, display_node, output }) = executed else { return };
        if node.len() > LONGEST_NODE || self.held.len() + self.told.len() >= NODES {
            return;
        }
        self.let_pass(out);
        self.begin(out);
        if is_long || has_files(&output) {
            self.held_so_far += 1;
            self.held.insert(node, Held { order: self.held_so_far, display_node });
        } else if !self.was_told(&node, &output) {
            out.push(Word::Text(self.executed(&node, &display_node, &output)));
            self.told.insert(node, digest(&output));
        }
    }

    /// Whether this is what was told of a node.
    pub(super) fn was_told(&self, node: &str, output: &Value) -> bool {
        self.told.get(node).is_some_and(|told| *told == digest(output))
    }

    /// `executed`, as the client sees it.
    pub(super) fn executed(&self, node: &str, display_node: &Value, output: &Value) -> String {
        let output = names::shown(self.task, output.clone());
        let data = json!({
            "node": node, "display_node": display_node, "output": output, "prompt_id": self.name,
        });
        words::message("executed", data)
    }

    /// The beginning, if it was not told.
    pub(super) fn begin(&mut self, out: &mut Vec<Word>) {
        self.start(out);
        if !std::mem::replace(&mut self.cached, true) {
            let data = json!({"nodes": [], "prompt_id": self.name, "timestamp": now()});
            out.push(Word::Text(words::message("execution_cached", data)));
        }
    }

    fn start(&mut self, out: &mut Vec<Word>) {
        if !std::mem::replace(&mut self.started, true) {
            let data = json!({"prompt_id": self.name, "timestamp": now()});
            out.extend([Word::Status, Word::Text(words::message("execution_start", data))]);
        }
    }

    /// What was still held back, and is not about files.
    pub(super) fn take_picture(&mut self) -> Option<Word> {
        self.plain.take().map(Word::Picture)
    }

    fn is_repeated(&mut self, kind: &str, data: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        (kind, data).hash(&mut hasher);
        let hash = hasher.finish();
        let known = match kind {
            "progress" => std::mem::replace(&mut self.last[0], hash) == hash,
            "progress_state" => std::mem::replace(&mut self.last[1], hash) == hash,
            _ if self.seen.len() >= REMEMBERED => self.seen.contains(&hash),
            _ => !self.seen.insert(hash),
        };
        known && self.again
    }

    /// JSON in which the prompt has its client's name.
    fn renamed(&self, json: &str) -> String {
        let name = Value::from(self.name.as_str()).to_string();
        let name = name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or_default();
        let names = self.inner_names.iter().filter(|inner| **inner != self.name && !inner.is_empty());
        let names: Vec<&str> = names.map(String::as_str).collect();
        replaced(json, &names, name)
    }
}

/// The text with every one of these names replaced, in one pass: what was put in is not looked at again, or a name inside a
/// name would make the text grow with every further one.
fn replaced(text: &str, names: &[&str], by: &str) -> String {
    let mut next: Vec<Option<usize>> = names.iter().map(|name| text.find(name)).collect();
    let mut made = String::with_capacity(text.len());
    let mut at = 0;
    while let Some((found, n)) = next.iter().enumerate().filter_map(|(n, found)| Some(((*found)?, n))).min() {
        made.push_str(&text[at..found]);
        made.push_str(by);
        at = found + names[n].len();
        for (name, next) in names.iter().zip(&mut next) {
            if next.is_some_and(|next| next < at) {
                *next = text[at..].find(name).map(|found| at + found);
            }
        }
    }
    made.push_str(&text[at..]);
    made
}

fn now() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Whether it names a file.
/// A hash of a value.
fn digest(value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.to_string().hash(&mut hasher);
    hasher.finish()
}

fn has_files(output: &Value) -> bool {
    match output {
        Value::Object(fields) => {
            fields.get("filename").is_some_and(Value::is_string) || fields.values().any(has_files)
        }
        Value::Array(values) => values.iter().any(has_files),
        _ => false,
    }
}
