//! The part behind the routes: prompt queue, validation, execution, cache, history.
//!
//! ```text
//!  http ── submit, queue, history, … ──▶ Engine ── events ──▶ Hub ──▶ sockets
//!                                          │
//!                                     one worker task: next prompt → validate'd graph → nodes → files
//! ```
//! The engine knows nothing of HTTP: a route hands it parsed JSON and gets an [`Answer`].

mod cache;
mod client;
mod convert;
mod execute;
mod faults;
mod graph;
mod heap;
mod jobs;
mod python;
mod queue;
mod run;
mod schedule;
mod service;
mod submit;
#[cfg(test)]
mod tests;
mod validate;
mod worker;

pub(crate) use faults::{ExecutionFaults, PromptFaults};
pub(crate) use python::{Exception, Frame};
pub(crate) use run::{Preview, Raised, Run};
pub(crate) use service::Engine;

use crate::json::Json;
use std::path::{Path, PathBuf};

/// What a route answers, before it becomes HTTP.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// A JSON document with its status.
    Json(u16, Json),
    /// Status with an empty body.
    Empty(u16),
    /// The handler raised: aiohttp's 500 page, and the connection is closed.
    Trouble,
}

/// The folders of one simulated ComfyUI. They exist before the engine starts.
#[derive(Debug, Clone)]
pub(crate) struct Dirs {
    /// What was uploaded.
    pub(crate) input: PathBuf,
    /// What was saved.
    pub(crate) output: PathBuf,
    /// Previews; emptied at start.
    pub(crate) temp: PathBuf,
    /// User data and settings.
    pub(crate) user: PathBuf,
}

impl Dirs {
    /// The four folders below `base`.
    pub(crate) fn below(base: &Path) -> Dirs {
        Dirs {
            input: base.join("input"),
            output: base.join("output"),
            temp: base.join("temp"),
            user: base.join("user"),
        }
    }
}

/// How the execution of a prompt ended.
enum Ending {
    /// It is over, well or not, and goes into the history.
    Finished(Box<Outcome>),
    /// The worker thread ended in it: the prompt stays where it is.
    WorkerDied,
    /// The process ended in it.
    ProcessEnded,
}

/// What the history says about an execution.
struct Outcome {
    outputs: Json,
    meta: Json,
    status: Json,
    /// False if a node reported something that JSON cannot hold.
    serializable: bool,
}
