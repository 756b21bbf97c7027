//! How a prompt ended, by the rules of the contract.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{Error, Repeat, Result};
use crate::history::HistoryEntry;
use crate::ids::PromptId;
use crate::limits::VALUES;
use crate::outputs::{Limits, OutputFile, Outputs, TooMany};
use crate::prompt::NodeErrors;
use crate::ws::Message;

/// How a watched prompt ended, or why the watch did.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// It ran to its end.
    Succeeded(Success),
    /// A node raised.
    Failed(Box<ExecutionFailure>),
    /// It was interrupted.
    Interrupted(Box<Interruption>),
    /// It was taken out of the queue before it ran.
    Deleted,
    /// It ran to its end, and left more than anybody would believe: the results were not read.
    TooMany(TooMany),
    /// It ended, and its entry in the history is larger than [`crate::Limits::history`] allows: how it ended is not known.
    TooLarge {
        /// What was asked.
        what: String,
        /// The bound.
        limit: u64,
        /// What the bound counts.
        unit: &'static str,
    },
    /// The server does not know it any more, or will never run it.
    Lost(Lost),
    /// The watch ended; the prompt may still be running.
    GaveUp(GaveUp),
}

/// A good end.
#[derive(Debug, Clone)]
pub struct Success {
    /// What the output nodes left. Can be empty: that is legal.
    pub outputs: Outputs,
    /// Nodes that did not run because the cache had their result.
    pub cached_nodes: Vec<String>,
    /// Outputs that were refused at submission, while these ran. Known when this watch began with the submission.
    pub node_errors: NodeErrors,
    /// Files of cached nodes that an earlier run made and that are gone.
    pub missing_files: Vec<OutputFile>,
    /// Milliseconds it ran, by the server's clock.
    pub duration_ms: Option<u64>,
    /// The history entry it was decided from.
    pub entry: Box<HistoryEntry>,
}

/// A node raised, or the server left an entry that does not say success.
#[derive(Debug, Clone)]
pub struct ExecutionFailure {
    /// The node; empty when the server does not tell.
    pub node_id: String,
    /// Its class.
    pub node_type: String,
    /// Class of the exception, for example `torch.OutOfMemoryError`.
    pub exception_type: String,
    /// Its message.
    pub message: String,
    /// Lines of the Python traceback.
    pub traceback: Vec<String>,
    /// Lack of memory.
    pub out_of_memory: bool,
    /// Nodes that had run.
    pub executed: Vec<String>,
    /// Inputs of the node, printed by the server: can be long, can be a list.
    pub current_inputs: Value,
    /// What branches that ended before have left.
    pub outputs: Outputs,
    /// The same, as the server wrote it.
    pub raw_outputs: Box<RawValue>,
    /// Milliseconds it ran, by the server's clock.
    pub duration_ms: Option<u64>,
}

impl ExecutionFailure {
    /// One that no node is known for.
    pub(crate) fn untold(message: String) -> Self {
        ExecutionFailure {
            node_id: String::new(),
            node_type: String::new(),
            exception_type: String::new(),
            message,
            traceback: Vec::new(),
            out_of_memory: false,
            executed: Vec::new(),
            current_inputs: Value::Null,
            outputs: Outputs::default(),
            raw_outputs: RawValue::NULL.to_owned(),
            duration_ms: None,
        }
    }
}

impl fmt::Display for ExecutionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.node_id.is_empty() {
            return write!(f, "the prompt failed: {}", self.message);
        }
        write!(
            f,
            "node {} ({}) raised {}: {}",
            self.node_id, self.node_type, self.exception_type, self.message
        )
    }
}

/// Where it was interrupted.
#[derive(Debug, Clone)]
pub struct Interruption {
    /// The node.
    pub node_id: String,
    /// Its class.
    pub node_type: String,
    /// What branches that ended before have left.
    pub outputs: Outputs,
}

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the prompt was interrupted at node {} ({})", self.node_id, self.node_type)
    }
}

/// Why a prompt is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The server was restarted: queue and history are gone.
    Restarted,
    /// It ended, and its history entry is not there: deleted, or pushed out by newer ones.
    HistoryGone,
    /// The server's worker thread is dead: prompts wait and nothing runs. Only a restart helps.
    WorkerDead,
    /// It, or the prompt it waits behind, is shown as running, and nothing was heard of that one for
    /// [`crate::SessionOptions::stalled_after`].
    Stalled,
    /// The server never knew this id while it was watched.
    NeverSeen,
}

impl Lost {
    pub(crate) fn repeat(self) -> Repeat {
        match self {
            Lost::Restarted | Lost::NeverSeen => Repeat::Safe,
            Lost::HistoryGone | Lost::Stalled => Repeat::LookFirst,
            Lost::WorkerDead => Repeat::Useless,
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lost::Restarted => "the server was restarted and forgot it",
            Lost::HistoryGone => "it ended, and its history entry was deleted",
            Lost::WorkerDead => {
                "the server's worker is dead (prompts wait, nothing runs); restart the server"
            }
            Lost::Stalled => "the server shows a prompt as running, but nothing was heard of it for too long",
            Lost::NeverSeen => "the server does not know it",
        })
    }
}

/// Why a watch ended before its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GaveUp {
    /// The time given to the watch is over.
    TimedOut {
        /// That time.
        after: Duration,
    },
    /// The server could not be asked for this long.
    Unreachable {
        /// How long.
        for_: Duration,
    },
    /// The session was closed.
    SessionClosed,
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GaveUp::TimedOut { after } => write!(f, "it did not end within {after:?}"),
            GaveUp::Unreachable { for_ } => write!(f, "the server could not be asked for {for_:?}"),
            GaveUp::SessionClosed => f.write_str("the session was closed"),
        }
    }
}

impl Outcome {
    /// Decides from a history entry.
    ///
    /// Success needs `completed` **and** `execution_success` as the last message: a cycle made at run time leaves
    /// `success` with an error behind it.
    #[must_use]
    pub fn judge(entry: HistoryEntry) -> Outcome {
        Self::judge_within(entry, &Limits::NONE)
    }

    /// As [`Outcome::judge`], for a server that may be broken or hostile. Of what failed or was interrupted and left too
    /// much, nothing is read.
    #[must_use]
    pub fn judge_within(mut entry: HistoryEntry, limits: &Limits) -> Outcome {
        if !entry.outputs_fit() {
            let what = "what it left".to_owned();
            return Outcome::TooLarge { what, limit: VALUES as u64, unit: "JSON values" };
        }
        let read = Outputs::from_history_within(&entry.raw_outputs, limits);
        if read.is_err() {
            entry.raw_outputs = RawValue::NULL.to_owned();
        }
        let last = entry.status.as_ref().and_then(|status| status.messages.last());
        let completed = entry.status.as_ref().is_some_and(|status| status.completed);
        match last {
            Some(Message::ExecutionSuccess(_)) if completed => match read {
                Ok(outputs) => Outcome::Succeeded(Success {
                    outputs,
                    cached_nodes: entry.cached_nodes(),
                    node_errors: NodeErrors::new(),
                    missing_files: Vec::new(),
                    duration_ms: entry.duration_ms(),
                    entry: Box::new(entry),
                }),
                Err(error) => Outcome::TooMany(error),
            },
            Some(Message::ExecutionInterrupted(at)) => Outcome::Interrupted(Box::new(Interruption {
                node_id: at.node_id.clone(),
                node_type: at.node_type.clone(),
                outputs: read.unwrap_or_default(),
            })),
            Some(Message::ExecutionError(error)) => Outcome::Failed(Box::new(ExecutionFailure {
                node_id: error.node_id.clone(),
                node_type: error.node_type.clone(),
                exception_type: error.exception_type.clone(),
                message: error.exception_message.clone(),
                traceback: error.traceback.clone(),
                out_of_memory: error.is_out_of_memory(),
                executed: error.executed.clone(),
                current_inputs: error.current_inputs.clone(),
                outputs: read.unwrap_or_default(),
                duration_ms: entry.duration_ms(),
                raw_outputs: entry.raw_outputs,
            })),
            last => {
                let message = match (&entry.status, last) {
                    (None, _) => "the history entry has no status".to_owned(),
                    (Some(status), last) => format!(
                        "the history entry says {:?}, completed {}, and ends with {}",
                        status.status_str,
                        status.completed,
                        last.map_or("no message", kind_of)
                    ),
                };
                Outcome::Failed(Box::new(ExecutionFailure {
                    outputs: read.unwrap_or_default(),
                    duration_ms: entry.duration_ms(),
                    raw_outputs: entry.raw_outputs,
                    ..ExecutionFailure::untold(message)
                }))
            }
        }
    }

    /// The files of nodes that were served from the cache: an earlier run made them.
    pub(crate) fn cached_files(&self) -> Vec<OutputFile> {
        let Outcome::Succeeded(success) = self else {
            return Vec::new();
        };
        let nodes: HashSet<&str> = success.cached_nodes.iter().map(String::as_str).collect();
        success.outputs.files().filter(|file| nodes.contains(file.node_id.as_str())).cloned().collect()
    }

    /// The success, or what a caller can act on.
    ///
    /// # Errors
    /// One variant per way to fail.
    pub fn into_result(self, prompt_id: &PromptId) -> Result<Success> {
        let prompt_id = prompt_id.clone();
        Err(match self {
            Outcome::Succeeded(success) if success.missing_files.is_empty() => return Ok(success),
            Outcome::Succeeded(success) => Error::OutputsGone { prompt_id, files: success.missing_files },
            Outcome::Failed(failure) if failure.out_of_memory => Error::OutOfMemory(failure),
            Outcome::Failed(failure) => Error::ExecutionFailed(failure),
            Outcome::Interrupted(at) => Error::Interrupted(at),
            Outcome::Deleted => Error::Deleted { prompt_id },
            Outcome::TooMany(source) => Error::TooMany { prompt_id, source },
            Outcome::TooLarge { what, limit, unit } => Error::TooLarge { what, limit, unit },
            Outcome::Lost(lost) => Error::Lost { prompt_id, lost },
            Outcome::GaveUp(why) => Error::GaveUp { prompt_id, why },
        })
    }
}

fn kind_of(message: &Message) -> &str {
    match message {
        Message::ExecutionStart(_) => "execution_start",
        Message::ExecutionCached(_) => "execution_cached",
        Message::ExecutionSuccess(_) => "execution_success",
        Message::Other { kind, .. } => kind,
        _ => "another message",
    }
}
