//! What a caller of the store can act on.

use remuda_core::{Status, TaskId};

/// A result of the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lease, or the worker's lease, belongs to somebody else by now. Nothing was changed.
    #[error("the lease is held by somebody else by now")]
    Fenced,
    /// No such task, key or worker.
    #[error("there is no {what} {id}")]
    NotFound {
        /// What kind of thing.
        what: &'static str,
        /// Which one.
        id: String,
    },
    /// The task ended before.
    #[error("the task is {0} and cannot change any more")]
    Finished(Status),
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request, which made task {task}")]
    Conflict {
        /// What the first request made.
        task: TaskId,
    },
    /// The disk, or the quota, is full. Nothing was changed.
    #[error("the store's disk is full")]
    Full,
    /// Somebody has all of something that one may have. Nothing was changed.
    #[error("{message}")]
    OverLimit {
        /// The name of the setting that says how much.
        limit: &'static str,
        /// What there is too much of.
        message: String,
    },
    /// Another process uses the SQLite file.
    #[error(
        "{path} is in use by another process ({holder}); one process owns a SQLite store: stop it, or use PostgreSQL"
    )]
    InUse {
        /// Which file.
        path: String,
        /// Who, as far as it is known.
        holder: String,
    },
    /// A newer Remuda made changes that this one does not understand.
    #[error(
        "the store has schema {found}, which needs a Remuda that knows schema {needs}; this one knows up to {known}: upgrade it"
    )]
    TooNew {
        /// The schema's version.
        found: i64,
        /// The lowest version that a program must know to use it.
        needs: i64,
        /// What this program knows.
        known: i64,
    },
    /// It cannot be reached, does not answer or is locked. Whether the last write was done is not known.
    #[error("the store does not answer: {message}")]
    Unavailable {
        /// What happened.
        message: String,
        /// The driver's error.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// It answered something that cannot be: a bug, or a file changed by others.
    #[error("the store holds something unexpected: {0}")]
    Corrupt(String),
    /// It was closed.
    #[error("the store was closed")]
    Closed,
}

impl Error {
    /// Whether the same request may succeed later.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Full)
    }
}
