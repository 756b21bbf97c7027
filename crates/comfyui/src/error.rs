//! What can go wrong, in classes a caller can act on.

use std::time::Duration;

use http::StatusCode;

use crate::ids::PromptId;
use crate::outputs::{OutputFile, TooMany};
use crate::prompt::Refusal;
use crate::version::Version;
use crate::watch::{ExecutionFailure, GaveUp, Interruption, Lost};

/// Short for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong between a caller and a ComfyUI.
///
/// The variants are what a caller can act on; [`Error::repeat`] says in one place what a repeat would do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is not one of a ComfyUI.
    #[error("not an address of a ComfyUI: {url:?}: {reason}")]
    InvalidUrl {
        /// The address as given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },

    /// No connection, or it broke: nothing is known about what the server did.
    #[error("ComfyUI at {url} cannot be reached ({method} {path})")]
    Unreachable {
        /// Base address of the server.
        url: String,
        /// Method of the request.
        method: &'static str,
        /// Path of the request.
        path: String,
        /// Whether the request may have reached the server.
        sent: bool,
        /// What the transport reported.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The server did not answer in time.
    #[error("{what} took longer than {after:?}")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long it was waited for.
        after: Duration,
    },

    /// `POST /prompt` was refused; the prompt is not queued.
    #[error("the workflow was refused: {0}")]
    Refused(Box<Refusal>),

    /// An answer with a status that says failure.
    #[error("{method} {path} was answered {status}{}", .body.as_deref().map(|b| format!(": {b}")).unwrap_or_default())]
    Status {
        /// Method of the request.
        method: &'static str,
        /// Path of the request.
        path: String,
        /// The status.
        status: StatusCode,
        /// The first part of the body, if there was text in it.
        body: Option<String>,
    },

    /// The named thing does not exist on the server.
    #[error("{what} does not exist on this ComfyUI")]
    NotFound {
        /// What was asked for.
        what: String,
    },

    /// A node raised while the prompt ran.
    #[error("{0}")]
    ExecutionFailed(Box<ExecutionFailure>),

    /// The prompt ran out of GPU (or main) memory.
    #[error("out of memory: {0}")]
    OutOfMemory(Box<ExecutionFailure>),

    /// Somebody interrupted the prompt.
    #[error("{0}")]
    Interrupted(Box<Interruption>),

    /// The prompt was taken out of the queue before it ran.
    #[error("prompt {prompt_id} was deleted from the queue before it ran")]
    Deleted {
        /// The prompt.
        prompt_id: PromptId,
    },

    /// The server no longer knows the prompt, or will never run it.
    #[error("prompt {prompt_id} is lost: {lost}")]
    Lost {
        /// The prompt.
        prompt_id: PromptId,
        /// Why.
        lost: Lost,
    },

    /// Nothing more was heard of the prompt; it may still be running. Ask [`crate::Client::find`].
    #[error("prompt {prompt_id} is no longer followed: {why}")]
    GaveUp {
        /// The prompt.
        prompt_id: PromptId,
        /// Why.
        why: GaveUp,
    },

    /// The prompt was served from the cache, and files of the earlier run are gone.
    #[error("prompt {prompt_id} was served from the cache, but {} of its files no longer exist (first: {})", .files.len(), .files.first().map(|f| f.filename.as_str()).unwrap_or(""))]
    OutputsGone {
        /// The prompt.
        prompt_id: PromptId,
        /// The files that are named and missing.
        files: Vec<OutputFile>,
    },

    /// The prompt ran, and left more than was allowed for.
    #[error("the results of prompt {prompt_id} were not read: {source}")]
    TooMany {
        /// The prompt.
        prompt_id: PromptId,
        /// Of what there is too much.
        source: TooMany,
    },

    /// Whether the prompt was queued could not be found out: ask [`crate::Client::find`] before another try.
    #[error("prompt {prompt_id} was sent, and it is not known whether it was queued")]
    Uncertain {
        /// The id it was sent with.
        prompt_id: PromptId,
        /// Why the answer is missing.
        #[source]
        source: Box<Error>,
    },

    /// This version of ComfyUI cannot do that.
    #[error("{what} needs a newer ComfyUI than {}", .version.as_ref().map(ToString::to_string).unwrap_or_else(|| "this one".into()))]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// The server's version, when it tells.
        version: Option<Version>,
    },

    /// The server answered something that is not in the contract.
    #[error("unexpected answer to {what}: {detail}")]
    Protocol {
        /// What was asked.
        what: String,
        /// What is odd about the answer.
        detail: String,
    },

    /// The server sent more than it may: see [`crate::Limits`]. Nothing of it was kept.
    #[error("the answer to {what} is larger than {limit} {unit}")]
    TooLarge {
        /// What was asked.
        what: String,
        /// The bound.
        limit: u64,
        /// What the bound counts.
        unit: &'static str,
    },

    /// The caller's side of a transfer failed: what is uploaded could not be read, or what is downloaded not written.
    #[error("cannot read or write {what}")]
    Input {
        /// What was read or written.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// What a second try of the failed call would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Nothing happened, or a repeat is harmless.
    Safe,
    /// The first try may have taken effect: look it up first.
    LookFirst,
    /// The same call will fail the same way.
    Useless,
}

impl Error {
    /// What a second try would do. Decided from the variant, never from a message text.
    ///
    /// ```
    /// use comfyui::{Error, Repeat};
    /// let error = Error::TimedOut { what: "GET /queue".into(), after: std::time::Duration::from_secs(30) };
    /// assert_eq!(error.repeat(), Repeat::LookFirst);
    /// ```
    #[must_use]
    pub fn repeat(&self) -> Repeat {
        match self {
            Error::Unreachable { sent: false, .. } => Repeat::Safe,
            Error::Unreachable { .. }
            | Error::TimedOut { .. }
            | Error::GaveUp { .. }
            | Error::Uncertain { .. } => Repeat::LookFirst,
            Error::Status { status, .. } if status.is_server_error() => Repeat::LookFirst,
            Error::Status { status, .. } if *status == StatusCode::TOO_MANY_REQUESTS => Repeat::Safe,
            Error::OutOfMemory(_) | Error::Interrupted(_) | Error::Deleted { .. } => Repeat::Safe,
            Error::Lost { lost, .. } => lost.repeat(),
            Error::OutputsGone { .. } | Error::TooMany { .. } => Repeat::Useless,
            Error::InvalidUrl { .. }
            | Error::Refused(_)
            | Error::Status { .. }
            | Error::NotFound { .. }
            | Error::ExecutionFailed(_)
            | Error::Unsupported { .. }
            | Error::Protocol { .. }
            | Error::TooLarge { .. }
            | Error::Input { .. } => Repeat::Useless,
        }
    }

    /// True when the server sent more than it may. Its other answers are not to be trusted either.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        match self {
            Error::TooLarge { .. } => true,
            Error::Uncertain { source, .. } => source.is_too_large(),
            _ => false,
        }
    }

    /// True when the server did not answer, so its state is unknown.
    #[must_use]
    pub fn is_connection(&self) -> bool {
        matches!(
            self,
            Error::Unreachable { .. }
                | Error::TimedOut { .. }
                | Error::GaveUp { why: GaveUp::Unreachable { .. }, .. }
        )
    }
}
