//! The part behind the routes: prompt queue, validation, execution, cache, history.
//!
//! ```text
//!  http ── submit, queue, history, … ──▶ Engine ── events ──▶ Hub ──▶ sockets
//!                                          │
//!                                     one worker task: next prompt → validate'd graph → nodes → files
//! ```
//! The engine knows nothing of HTTP: a route hands it parsed JSON and gets an [`Answer`].

mod faults;
mod service;

pub(crate) use faults::{ExecutionFaults, NoFaults, PromptFaults};
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
