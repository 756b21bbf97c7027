//! What a caller of the store can act on.

use remuda_core::{Status, TaskId};

use crate::feed::FeedPlace;

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
    /// The worker's name is another key's, or that of a worker of the installation itself.
    #[error(
        "the worker {id} was registered by somebody else: choose another name, or revoke the key that registered it"
    )]
    Taken {
        /// Its name.
        id: String,
    },
    /// The key has as much of it as one key may have.
    #[error("this key has reached its limit of {what}")]
    TooMany {
        /// Of what: `workers`, `labels` of workers, or `descriptions of nodes`.
        what: &'static str,
    },
    /// The task brings a secret, and there is no key to seal it with. Nothing was changed.
    #[error(
        "extra_data.{field} is a secret, and this server has no key to keep it with: give all servers the same \
         --secret-key-file (REMUDA_SECRET_KEY_FILE), or leave the field out"
    )]
    NoSecretKey {
        /// The member of `extra_data`.
        field: String,
    },
    /// What is sealed in the store cannot be opened. Nothing was changed.
    #[error(
        "the secrets of this installation cannot be opened: {0}; give the right key with --secret-key-file"
    )]
    WrongSecretKey(String),
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
    /// That part of the feed is not kept any more, or cannot be followed from here.
    #[error("the feed is not kept from there on: begin at {first}")]
    Gone {
        /// Before the first entry that is kept.
        first: FeedPlace,
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
