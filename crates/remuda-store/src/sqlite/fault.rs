//! What SQLite's errors mean to callers.

use rusqlite::ErrorCode;

use crate::Error;

/// Why a command did not do its work.
#[derive(Debug)]
pub(super) enum Fault {
    /// An answer like any other: the command changed nothing, the transaction goes on.
    Answer(Error),
    /// The database failed: the transaction is rolled back.
    Abort(rusqlite::Error),
}

pub(super) type Outcome<T> = Result<T, Fault>;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Answer(error)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Abort(error)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Answer(error) => error,
            Fault::Abort(error) => explain(error),
        }
    }
}

/// A value in the file that no version of ours wrote.
pub(super) fn corrupt(what: &str, error: impl std::fmt::Display) -> Fault {
    Fault::Answer(Error::Corrupt(format!("{what}: {error}")))
}

/// The same as a typed error of ours.
pub(super) fn explain(error: rusqlite::Error) -> Error {
    let Some(code) = error.sqlite_error_code() else {
        return Error::Corrupt(error.to_string());
    };
    match code {
        ErrorCode::DiskFull => Error::Full,
        // The shared memory file could not grow: the same cause, another file.
        ErrorCode::SystemIoFailure if no_space(&error) => Error::Full,
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::SystemIoFailure
        | ErrorCode::CannotOpen
        | ErrorCode::ReadOnly
        | ErrorCode::PermissionDenied
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::OutOfMemory
        | ErrorCode::OperationInterrupted => {
            Error::Unavailable { message: error.to_string(), source: Some(Box::new(error)) }
        }
        _ => Error::Corrupt(error.to_string()),
    }
}

fn no_space(error: &rusqlite::Error) -> bool {
    let extended = error.sqlite_error().map(|error| error.extended_code);
    extended == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE)
}
