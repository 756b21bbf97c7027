//! Text frames: `{"type": …, "data": {…}}`.
//!
//! Custom nodes send types of their own, and known types come in odd shapes, so decoding is forgiving: whatever is
//! JSON with a `type` becomes a [`Message`], at worst [`Message::Other`].

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::ids::PromptId;
use crate::lenient;
use crate::ws::{Preview, TextFrame};

/// How many JSON values one text frame may hold. `progress_state` of a graph with 20,000 nodes has some 200,000.
const MOST_VALUES: usize = 500_000;

/// A frame that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not JSON, not even with bare NaN.
    #[error("text frame is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// JSON without a text under `type`.
    #[error("text frame without a type")]
    NoType,
    /// More values than any message has: reading them would take a multiple of their length in memory.
    #[error("text frame of {len} bytes with too many values")]
    TooManyValues {
        /// Length of the frame.
        len: usize,
    },
    /// A binary frame that ends too early or contradicts itself.
    #[error("binary frame of {len} bytes: {what}")]
    Binary {
        /// Length of the frame.
        len: usize,
        /// What is wrong.
        what: &'static str,
    },
}

/// Everything the server says on the socket, text and binary.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Message {
    /// The queue changed; the first one carries the socket's name.
    Status(Status),
    /// The server's features, in answer to ours.
    FeatureFlags(Value),
    /// A prompt began to run.
    ExecutionStart(ExecutionStart),
    /// Which nodes need not run.
    ExecutionCached(ExecutionCached),
    /// A node begins, or with `node: None` the prompt is over and its history entry exists.
    Executing(Executing),
    /// Steps of one node.
    Progress(Progress),
    /// State of all nodes so far (0.3.45).
    ProgressState(ProgressState),
    /// A node left something to show.
    Executed(Executed),
    /// The prompt ran to its end. The history entry may not exist yet.
    ExecutionSuccess(ExecutionSuccess),
    /// A node raised, or a branch was blocked: see [`ExecutionError::is_blocked_branch`].
    ExecutionError(Box<ExecutionError>),
    /// The prompt was interrupted.
    ExecutionInterrupted(ExecutionInterrupted),
    /// A preview image.
    Preview(Preview),
    /// Text from a node.
    Text(TextFrame),
    /// A type this crate does not know, or a known one in a shape it does not know.
    Other {
        /// The type.
        kind: String,
        /// The data.
        data: Value,
    },
}

/// Queue state.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// Pending plus running, of everybody.
    pub queue_remaining: Option<u64>,
    /// Name of the socket; only in the first frame.
    pub sid: Option<String>,
}

/// A prompt began.
#[derive(Debug, Clone, Deserialize)]
pub struct ExecutionStart {
    /// The prompt.
    pub prompt_id: PromptId,
    /// Milliseconds since 1970.
    #[serde(default, deserialize_with = "milliseconds")]
    pub timestamp: Option<u64>,
}

/// Nodes served from the cache.
#[derive(Debug, Clone, Deserialize)]
pub struct ExecutionCached {
    /// The prompt.
    pub prompt_id: PromptId,
    /// The nodes, in no order.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Milliseconds since 1970.
    #[serde(default, deserialize_with = "milliseconds")]
    pub timestamp: Option<u64>,
}

/// A node begins, or the prompt is over.
#[derive(Debug, Clone, Deserialize)]
pub struct Executing {
    /// Missing in the frame that greets a reconnected socket.
    #[serde(default)]
    pub prompt_id: Option<PromptId>,
    /// The node; `None` when the prompt is over.
    pub node: Option<String>,
    /// The node to show, where `node` was made by expansion.
    #[serde(default)]
    pub display_node: Option<String>,
}

/// Steps of one node.
#[derive(Debug, Clone, Deserialize)]
pub struct Progress {
    /// The prompt; old versions leave it out for some nodes.
    #[serde(default)]
    pub prompt_id: Option<PromptId>,
    /// The node.
    #[serde(default)]
    pub node: Option<String>,
    /// Steps done. Usually whole, not always.
    pub value: f64,
    /// Steps in all.
    pub max: f64,
}

/// State of all nodes that began.
#[derive(Debug, Clone, Deserialize)]
pub struct ProgressState {
    /// The prompt.
    pub prompt_id: PromptId,
    /// By node id.
    #[serde(default)]
    pub nodes: IndexMap<String, NodeProgress>,
}

/// State of one node.
#[derive(Debug, Clone, Deserialize)]
pub struct NodeProgress {
    /// Steps done.
    #[serde(default)]
    pub value: f64,
    /// Steps in all.
    #[serde(default)]
    pub max: f64,
    /// `running`, `finished`, …
    #[serde(default)]
    pub state: String,
    /// The node to show.
    #[serde(default)]
    pub display_node_id: Option<String>,
    /// The node that made it by expansion.
    #[serde(default)]
    pub parent_node_id: Option<String>,
}

/// A node left something to show.
#[derive(Debug, Clone, Deserialize)]
pub struct Executed {
    /// The prompt.
    pub prompt_id: PromptId,
    /// The node.
    pub node: String,
    /// The node to show.
    #[serde(default)]
    pub display_node: Option<String>,
    /// As in the history; null for a cached node without anything to show.
    #[serde(default)]
    pub output: Value,
}

/// The prompt ran to its end.
#[derive(Debug, Clone, Deserialize)]
pub struct ExecutionSuccess {
    /// The prompt.
    pub prompt_id: PromptId,
    /// Milliseconds since 1970.
    #[serde(default, deserialize_with = "milliseconds")]
    pub timestamp: Option<u64>,
}

/// A node raised.
#[derive(Debug, Clone, Deserialize)]
pub struct ExecutionError {
    /// The prompt.
    pub prompt_id: PromptId,
    /// The node.
    #[serde(default, deserialize_with = "text")]
    pub node_id: String,
    /// Its class.
    #[serde(default, deserialize_with = "text")]
    pub node_type: String,
    /// Message of the exception, without the line break the server leaves at its end.
    #[serde(default, deserialize_with = "text")]
    pub exception_message: String,
    /// Class of the exception.
    #[serde(default, deserialize_with = "text")]
    pub exception_type: String,
    /// Lines of the Python traceback.
    #[serde(default, deserialize_with = "lines")]
    pub traceback: Vec<String>,
    /// Nodes that had run.
    #[serde(default, deserialize_with = "lines")]
    pub executed: Vec<String>,
    /// Inputs of the node, printed by the server: can be long, can be a list.
    #[serde(default)]
    pub current_inputs: Value,
    /// Milliseconds since 1970; missing for a blocked branch.
    #[serde(default, deserialize_with = "milliseconds")]
    pub timestamp: Option<u64>,
}

impl ExecutionError {
    /// A blocked branch is reported like an error, and the prompt goes on.
    #[must_use]
    pub fn is_blocked_branch(&self) -> bool {
        self.exception_type == "ExecutionBlocked"
    }

    /// Lack of memory, on the GPU or off it.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        let class = self.exception_type.rsplit('.').next().unwrap_or_default();
        matches!(class, "OutOfMemoryError" | "MemoryError" | "OOM_EXCEPTION")
    }
}

/// The prompt was interrupted.
#[derive(Debug, Clone, Deserialize)]
pub struct ExecutionInterrupted {
    /// The prompt.
    pub prompt_id: PromptId,
    /// Where it was.
    #[serde(default, deserialize_with = "text")]
    pub node_id: String,
    /// Class of that node.
    #[serde(default, deserialize_with = "text")]
    pub node_type: String,
    /// Nodes that had run.
    #[serde(default, deserialize_with = "lines")]
    pub executed: Vec<String>,
    /// Milliseconds since 1970.
    #[serde(default, deserialize_with = "milliseconds")]
    pub timestamp: Option<u64>,
}

impl Message {
    /// A message from its type and data, as it stands in the history too.
    #[must_use]
    pub fn from_parts(kind: &str, data: Value) -> Message {
        fn read<T: for<'de> Deserialize<'de>>(kind: &str, data: Value, wrap: fn(T) -> Message) -> Message {
            match T::deserialize(&data) {
                Ok(known) => wrap(known),
                Err(_) => Message::Other { kind: kind.to_owned(), data },
            }
        }
        match kind {
            "status" => Message::Status(Status {
                queue_remaining: data.pointer("/status/exec_info/queue_remaining").and_then(Value::as_u64),
                sid: data.get("sid").and_then(Value::as_str).map(str::to_owned),
            }),
            "feature_flags" => Message::FeatureFlags(data),
            "execution_start" => read(kind, data, Message::ExecutionStart),
            "execution_cached" => read(kind, data, Message::ExecutionCached),
            "executing" => read(kind, data, Message::Executing),
            "progress" => read(kind, data, Message::Progress),
            "progress_state" => read(kind, data, Message::ProgressState),
            "executed" => read(kind, data, Message::Executed),
            "execution_success" => read(kind, data, Message::ExecutionSuccess),
            "execution_error" => read(kind, data, |error| Message::ExecutionError(Box::new(error))),
            "execution_interrupted" => read(kind, data, Message::ExecutionInterrupted),
            _ => Message::Other { kind: kind.to_owned(), data },
        }
    }

    /// The prompt it is about, where it says so.
    #[must_use]
    pub fn prompt_id(&self) -> Option<&PromptId> {
        match self {
            Message::ExecutionStart(m) => Some(&m.prompt_id),
            Message::ExecutionCached(m) => Some(&m.prompt_id),
            Message::Executing(m) => m.prompt_id.as_ref(),
            Message::Progress(m) => m.prompt_id.as_ref(),
            Message::ProgressState(m) => Some(&m.prompt_id),
            Message::Executed(m) => Some(&m.prompt_id),
            Message::ExecutionSuccess(m) => Some(&m.prompt_id),
            Message::ExecutionError(m) => Some(&m.prompt_id),
            Message::ExecutionInterrupted(m) => Some(&m.prompt_id),
            Message::Preview(preview) => preview.source.as_ref().and_then(|source| source.prompt_id.as_ref()),
            Message::Status(_) | Message::FeatureFlags(_) | Message::Text(_) | Message::Other { .. } => None,
        }
    }

    /// Milliseconds since 1970 by the server's clock, where it says so.
    #[must_use]
    pub fn timestamp(&self) -> Option<u64> {
        match self {
            Message::ExecutionStart(m) => m.timestamp,
            Message::ExecutionCached(m) => m.timestamp,
            Message::ExecutionSuccess(m) => m.timestamp,
            Message::ExecutionError(m) => m.timestamp,
            Message::ExecutionInterrupted(m) => m.timestamp,
            _ => None,
        }
    }
}

/// Reads one text frame.
///
/// # Errors
/// Only when it is not JSON or has no type; unknown types are [`Message::Other`].
///
/// ```
/// use comfyui::ws::{Message, decode_text};
/// let frame = r#"{"type": "executing", "data": {"node": null, "prompt_id": "p"}}"#;
/// assert!(matches!(decode_text(frame)?, Message::Executing(end) if end.node.is_none()));
/// # Ok::<(), comfyui::ws::DecodeError>(())
/// ```
pub fn decode_text(frame: &str) -> Result<Message, DecodeError> {
    #[derive(Deserialize)]
    struct Frame {
        #[serde(rename = "type")]
        kind: Option<Value>,
        #[serde(default)]
        data: Value,
    }
    if frame.len() > MOST_VALUES && lenient::count_values(frame.as_bytes(), usize::MAX) > MOST_VALUES {
        return Err(DecodeError::TooManyValues { len: frame.len() });
    }
    let frame: Frame = lenient::from_str(frame)?;
    match frame.kind {
        Some(Value::String(kind)) => Ok(Message::from_parts(&kind, frame.data)),
        _ => Err(DecodeError::NoType),
    }
}

/// Whole milliseconds, whether written as an int or a float.
fn milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(value.as_u64().or_else(|| value.as_f64().filter(|ms| *ms >= 0.0).map(|ms| ms as u64)))
}

/// A text; anything else as its JSON, null as nothing.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => text.trim_end().to_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    })
}

/// A list of texts; what is not a text is left out.
fn lines<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Array(items) => items
            .into_iter()
            .filter_map(|item| match item {
                Value::String(text) => Some(text),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    })
}
