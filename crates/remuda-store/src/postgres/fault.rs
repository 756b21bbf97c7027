//! What the driver's errors mean for a caller.

use tokio_postgres::error::SqlState;

use crate::Error;

/// Why a piece of work on the database was not done.
#[derive(Debug)]
pub(super) enum Fault {
    /// Another transaction was in the way and nothing was changed: the same work may be tried at once.
    Again(tokio_postgres::Error),
    /// The server does not take what was sent: a text with a NUL, a number out of range. Nothing was changed.
    Refused(tokio_postgres::Error),
    /// What the caller gets.
    Is(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Is(error)
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(state) = error.code() else {
            // Errors of encoding are ours, everything else without a code is the connection's.
            let ours = !error.is_closed() && std::error::Error::source(&error).is_some_and(is_conversion);
            return if ours { Self::Refused(error) } else { Self::Is(unavailable(error)) };
        };
        match state.code() {
            // Serialization failure, deadlock, somebody inserted the same key, somebody else holds the lock.
            "40001" | "40P01" | "23505" | "55P03" => Self::Again(error),
            // The server is out of disk space.
            "53100" => Self::Is(Error::Full),
            code if is_outage(code, state) => Self::Is(unavailable(error)),
            _ => Self::Refused(error),
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Again(error) => unavailable(error),
            Fault::Refused(error) => Self::Corrupt(words(&error)),
            Fault::Is(error) => error,
        }
    }
}

/// Not reachable, shutting down, starting, overloaded, read-only after a failover, timed out, or not letting us in.
fn is_outage(code: &str, state: &SqlState) -> bool {
    let class = &code[..code.len().min(2)];
    matches!(class, "08" | "53" | "57" | "58" | "28" | "3D")
        || *state == SqlState::READ_ONLY_SQL_TRANSACTION
        || *state == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
        || *state == SqlState::IN_FAILED_SQL_TRANSACTION
        || *state == SqlState::INSUFFICIENT_PRIVILEGE
}

fn is_conversion(source: &(dyn std::error::Error + 'static)) -> bool {
    source.downcast_ref::<std::io::Error>().is_none()
}

/// The server cannot be reached or does not answer. The driver's words have no password in them.
pub(super) fn unavailable(error: tokio_postgres::Error) -> Error {
    Error::Unavailable { message: words(&error), source: Some(Box::new(error)) }
}

/// The same without an error of the driver.
pub(super) fn silent(message: impl Into<String>) -> Error {
    Error::Unavailable { message: message.into(), source: None }
}

/// What the server said, or what went wrong on the way to it.
pub(super) fn words(error: &tokio_postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        return format!("{} ({})", said.message(), said.code().code());
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    text
}

/// The same error for another caller of the same batch.
pub(super) fn copy(error: &Error) -> Error {
    match error {
        Error::Full => Error::Full,
        Error::Closed => Error::Closed,
        Error::Fenced => Error::Fenced,
        Error::Corrupt(text) => Error::Corrupt(text.clone()),
        Error::Unavailable { message, .. } => silent(message.clone()),
        other => Error::Corrupt(other.to_string()),
    }
}
