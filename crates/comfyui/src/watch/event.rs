//! What a watch tells on the way.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::lenient;
use crate::outputs::{NodeOutput, Output};
use crate::watch::Outcome;
use crate::ws::{ExecutionError, ImageFormat, Preview, RawFrame};

/// One thing that happened to a watched prompt. [`Event::Finished`] is the last; the others are best effort.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// It waits at the server.
    Queued {
        /// How many run or wait before it, when known.
        ahead: Option<usize>,
    },
    /// It runs.
    Started,
    /// These nodes need not run.
    Cached {
        /// Their ids.
        nodes: Vec<String>,
    },
    /// A node begins.
    Node {
        /// Its id; dotted when made by expansion.
        node: String,
        /// The node of the submitted graph that stands for it.
        display_node: String,
    },
    /// Steps of a node.
    Progress {
        /// The node, when the server tells.
        node: Option<String>,
        /// Steps done.
        value: f64,
        /// Steps in all.
        max: f64,
    },
    /// All nodes that began, with their state (0.3.45 and later).
    Nodes(Vec<NodeState>),
    /// A preview image. `SaveImageWebsocket` delivers its results this way and no other, as PNG: those are not replaced
    /// by newer ones, as JPEG previews are.
    Preview(Preview),
    /// Text from a node.
    Text {
        /// The node.
        node: String,
        /// The text.
        text: String,
    },
    /// A node left its output.
    Output(NodeOutput),
    /// A branch was blocked by a node; the prompt goes on.
    BranchBlocked(Box<ExecutionError>),
    /// What the server said, as it said it, before what was made of it. Only for watches that asked for it: see
    /// [`crate::WatchOptions::raw`].
    Raw(Raw),
    /// The socket is gone or back; the watch goes on by asking.
    Connection {
        /// Whether frames arrive.
        up: bool,
    },
    /// The reader was too slow, and this many events were left out.
    Skipped(u64),
    /// The end.
    Finished(Outcome),
}

/// One frame of the socket that belongs to the prompt: it says so, or came without a name while the prompt ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Raw {
    /// `{"type": …, "data": …}`.
    Text {
        /// Its type.
        kind: String,
        /// Its data, byte for byte; only bare `NaN` and `Infinity`, which are not JSON, are null.
        data: String,
    },
    /// A binary frame.
    Binary {
        /// The number that it begins with: 1 and 4 are pictures, 3 is text.
        event: u32,
        /// What follows the number.
        payload: Bytes,
    },
}

impl Raw {
    /// `None` when the frame has no type, or is not JSON.
    pub(crate) fn read(frame: &RawFrame) -> Option<Raw> {
        #[derive(Deserialize)]
        struct Text {
            #[serde(rename = "type")]
            kind: String,
            data: Option<Box<RawValue>>,
        }
        match frame {
            RawFrame::Text(text) => {
                let Text { kind, data } = lenient::from_str(text).ok()?;
                let data =
                    data.map_or_else(|| "null".to_owned(), |data| String::from(Box::<str>::from(data)));
                Some(Raw::Text { kind, data })
            }
            RawFrame::Binary(frame) => {
                let (number, _) = frame.split_first_chunk::<4>()?;
                Some(Raw::Binary { event: u32::from_be_bytes(*number), payload: frame.slice(4..) })
            }
        }
    }
}

/// State of one node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeState {
    /// Its id.
    pub node: String,
    /// Steps done.
    pub value: f64,
    /// Steps in all.
    pub max: f64,
    /// Whether it is done.
    pub finished: bool,
}

/// Roughly the bytes that one result takes; files are counted with what nodes say of them.
fn output_size(output: &Output) -> usize {
    size_of::<Output>()
        + match output {
            Output::File(file) => {
                file.filename.len() + file.subfolder.len() + file.extra.len() * size_of::<serde_json::Value>()
            }
            Output::Text { key, text } => key.len() + text.len(),
            Output::Data { key, raw } => key.len() + raw.get().len(),
        }
}

impl Event {
    /// Bytes it holds, where these can be many.
    pub(crate) fn size(&self) -> usize {
        match self {
            Event::Preview(preview) => preview.image.len(),
            Event::Raw(Raw::Text { data, .. }) => data.len(),
            // Its preview, which comes with it, shares the memory.
            Event::Raw(Raw::Binary { payload, .. }) => payload.len(),
            Event::Text { node, text } => node.len() + text.len(),
            Event::Cached { nodes } => nodes.iter().map(|node| node.len() + size_of::<String>()).sum(),
            Event::Nodes(nodes) => nodes.iter().map(|state| state.node.len() + size_of::<NodeState>()).sum(),
            Event::Output(output) => output.outputs.iter().map(output_size).sum(),
            Event::BranchBlocked(error) => {
                let lines: usize = error.traceback.iter().map(String::len).sum();
                error.exception_message.len() + lines
            }
            _ => 0,
        }
    }

    /// Newer news of the same kind make this one worthless.
    pub(crate) fn is_replaced_by(&self, newer: &Event) -> bool {
        match (self, newer) {
            (Event::Progress { node: old, .. }, Event::Progress { node: new, .. }) => old == new,
            (Event::Preview(old), Event::Preview(_)) => old.format != ImageFormat::Png,
            (Event::Nodes(_), Event::Nodes(_)) | (Event::Queued { .. }, Event::Queued { .. }) => true,
            _ => false,
        }
    }
}
