//! A ComfyUI client that survives the real ComfyUI.
//!
#![doc = include_str!("../README.md")]

#[cfg(test)]
mod arbitrary;
mod cancel;
mod client;
mod error;
mod files;
#[cfg(test)]
mod growth;
pub mod guard;
mod history;
mod ids;
mod info;
mod jobs;
pub mod lenient;
mod limits;
pub mod object_info;
pub mod outputs;
mod prompt;
mod queue;
mod tls;
mod userdata;
mod version;
mod watch;
pub mod workflow;
pub mod ws;

pub use cancel::{Cancelled, Interrupt, OldInterrupt};
pub use client::{Client, ClientBuilder};
pub use error::{Error, Repeat, Result};
pub use files::{ByteRange, Download, FileRef, Upload};
pub use history::{HistoryEntry, Status};
pub use ids::{ClientId, PromptId};
pub use info::{Device, Features, System, SystemStats};
pub use jobs::{Job, JobStatus, JobsPage, JobsQuery, Pagination};
pub use limits::Limits;
pub use object_info::ObjectInfo;
pub use prompt::{Accepted, NodeError, NodeErrors, Problem, PromptRequest, Refusal};
pub use queue::{Queue, QueueItem, Whereabouts};
pub use userdata::UserFile;
pub use version::{Capabilities, ParseVersionError, Version};
pub use watch::{
    Event, ExecutionFailure, GaveUp, Interruption, Lost, NodeState, Outcome, Raw, Session, SessionOptions,
    Success, Watch, WatchOptions,
};
pub use workflow::Workflow;

/// The examples of the repository's front page run, too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FrontPage;
