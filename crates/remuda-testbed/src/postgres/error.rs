//! What can go wrong with PostgreSQL in a test.

use std::path::PathBuf;

/// PostgreSQL cannot be started or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The programs are not installed.
    #[error("{program} is not installed: on Debian `apt-get install {package}`, or put its folder into PATH")]
    Missing {
        /// What was looked for.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// PostgreSQL refuses to run as root, and there is nobody else to run it as.
    #[error(
        "postgresql refuses to run as root, and there is no user `postgres`: create one, or test as another user"
    )]
    NoUser,
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
        /// The end of what it printed or logged.
        said: String,
    },
    /// The server did not accept connections in time.
    #[error("{program} in {} did not answer within {seconds} s; the last attempt: {last}; its log: {log}", folder.display())]
    NotReady {
        /// Which program.
        program: &'static str,
        /// Where its data are.
        folder: PathBuf,
        /// How long it was waited for.
        seconds: u64,
        /// What the last attempt to connect said.
        last: String,
        /// The end of its log.
        log: String,
    },
    /// The address is none.
    #[error("`{url}` is no address of a postgresql server: {why}")]
    Address {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// The server refused a connection or a statement.
    #[error("cannot {what} at {url}: {source}")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// Where.
        url: String,
        /// What the server said.
        source: tokio_postgres::Error,
    },
}

impl Error {
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}
