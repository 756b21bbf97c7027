//! What can go wrong with LittleHorse in a test.

use crate::process;
use crate::wait::Timeout;

/// LittleHorse cannot be started or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody said where the server is.
    #[error(
        "no LittleHorse server to test with: run `cargo xtask test --littlehorse`, which fetches one ({why})"
    )]
    Missing {
        /// What was looked for.
        why: String,
    },
    /// A folder or process could not be made.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A program did not do what it was started for.
    #[error("{program} failed: {said}")]
    Program {
        /// Which one.
        program: &'static str,
        /// The end of what it printed.
        said: String,
    },
    /// A process could not be started or did not end.
    #[error(transparent)]
    Process(#[from] process::Error),
    /// Something did not come in time.
    #[error(transparent)]
    Late(#[from] Timeout),
    /// The server refused a call.
    #[error("{method} was refused ({code:?}): {message}")]
    Refused {
        /// The method.
        method: &'static str,
        /// gRPC's word for it.
        code: tonic::Code,
        /// The server's words.
        message: String,
    },
}

impl Error {
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }

    pub(super) fn refused(method: &'static str) -> impl FnOnce(tonic::Status) -> Error {
        move |status| Error::Refused { method, code: status.code(), message: status.message().to_owned() }
    }
}
