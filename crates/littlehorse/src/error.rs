//! What can go wrong between a worker and its server.

use std::time::Duration;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Each says what happened, to what, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is missing or wrong.
    #[error("{name}: {reason}")]
    Config {
        /// The setting, by the name of its variable.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No answer: the server is away, or cannot be reached from here. It may be tried again.
    #[error("{host} does not answer: {reason}")]
    Unavailable {
        /// Who.
        host: String,
        /// The reason, with its causes.
        reason: String,
    },
    /// A quota is used up, or the message is too large for the server.
    #[error("{method}: the server takes no more of it now: {message}")]
    Exhausted {
        /// The method that was refused.
        method: &'static str,
        /// The server's words.
        message: String,
        /// How long to wait, if the server said so; without it the message is too large for the server.
        retry_after: Option<Duration>,
    },
    /// The token service gave no token.
    #[error("no access token from {url}: {reason}")]
    Token {
        /// The token service.
        url: String,
        /// The reason.
        reason: String,
        /// Whether the same request can succeed later.
        transient: bool,
    },
    /// A TaskDef of this name exists, and is another one.
    #[error(
        "the TaskDef {name} exists and differs.\n  registered: {registered}\n  wanted:     {wanted}\nTaskDefs never change: take another name, or delete it with `lhctl delete taskDef {name}`"
    )]
    Differs {
        /// Its name.
        name: String,
        /// What the server has.
        registered: String,
        /// What was to be registered.
        wanted: String,
    },
    /// There is no such thing at the server.
    #[error("{what} is not there")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// The server refuses: wrong tenant, no permission, nonsense.
    #[error("{method} was refused ({code:?}): {message}")]
    Refused {
        /// The method.
        method: &'static str,
        /// gRPC's word for it.
        code: tonic::Code,
        /// The server's words.
        message: String,
    },
    /// A value is not what was expected.
    #[error("{what}: {reason}")]
    Value {
        /// Which value.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// It would be larger than what the server takes.
    #[error("{what} has {bytes} bytes, and the server takes {limit} at most")]
    TooLarge {
        /// What.
        what: String,
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        limit: usize,
    },
    /// The worker was stopped.
    #[error("the worker was stopped")]
    Closed,
}

impl Error {
    /// Whether the same call can go well later, without anybody changing anything here.
    ///
    /// A Java server that stumbles answers INTERNAL or UNKNOWN, so these count.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::Exhausted { retry_after, .. } => retry_after.is_some(),
            Self::Token { transient, .. } => *transient,
            Self::Refused { code, .. } => {
                matches!(code, tonic::Code::Internal | tonic::Code::Unknown | tonic::Code::Aborted)
            }
            _ => false,
        }
    }

    pub(crate) fn config(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Config { name: name.into(), reason: reason.into() }
    }

    pub(crate) fn value(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Value { what: what.into(), reason: reason.into() }
    }
}

/// An error with its causes, in one line; what a cause repeats is said once.
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}
