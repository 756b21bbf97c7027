//! What can go wrong, in terms that a caller can act on.

use uuid::Uuid;

use crate::key::FileKey;

/// An error of the caller's own stream.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The result of everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a file could not be written, read or removed.
///
/// The texts name the store and the file, and never a credential: they may be logged and shown to an administrator. They may
/// hold paths and bucket names, so they are not for the users of a public API.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store answers, and surely has no such file.
    #[error("no file {key}")]
    NotFound {
        /// What was asked for.
        key: FileKey,
    },

    /// Something on the way to the file is a link, which is not followed: as good as no file.
    #[error("no file {key}: {detail}")]
    Linked {
        /// What was asked for.
        key: FileKey,
        /// What is a link.
        detail: String,
    },

    /// The stream brought more than was allowed. Nothing of it was kept.
    #[error("the file is larger than {limit} bytes")]
    TooLarge {
        /// The most that was allowed.
        limit: u64,
    },

    /// The disk, the quota or the bucket is full.
    #[error("no space left in {location}: {detail}")]
    Full {
        /// The store.
        location: String,
        /// What it said.
        detail: String,
    },

    /// The store belongs to another installation, or to none where one was expected.
    #[error("{}", wrong_installation(location, expected, found.as_deref()))]
    WrongInstallation {
        /// The store.
        location: String,
        /// The installation that looked.
        expected: Uuid,
        /// What the id file says; `None` when there is no id file.
        found: Option<String>,
    },

    /// The caller's stream failed. Nothing of it was kept.
    #[error("the source of the file failed")]
    Source(#[source] BoxError),

    /// The location cannot be used as it is written.
    #[error("cannot use the file store {location}: {reason}")]
    BadLocation {
        /// The location, without secrets.
        location: String,
        /// What is wrong with it, and what to write instead.
        reason: String,
    },

    /// The key is not one that every store can hold.
    #[error("bad file key {key:?}: {reason}")]
    BadKey {
        /// The key as it was given, shortened.
        key: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The range begins at or after the end of the file.
    #[error("the range begins after the end of the file, which has {size} bytes")]
    BadRange {
        /// The size of the whole file.
        size: u64,
    },

    /// The store refused: wrong credentials, or rights that are missing.
    #[error("access to {location} was denied: {detail}")]
    Denied {
        /// The store.
        location: String,
        /// What it said.
        detail: String,
    },

    /// The store could not be reached, or could not answer. It says nothing about whether a file is there.
    #[error("the file store {location} is not available: {detail}")]
    Unavailable {
        /// The store.
        location: String,
        /// What happened.
        detail: String,
    },

    /// Anything else that the store said.
    #[error("the file store {location} failed: {detail}")]
    Other {
        /// The store.
        location: String,
        /// What happened.
        detail: String,
    },
}

impl Error {
    /// Whether the same request may well succeed later, without anybody changing the request or the settings.
    ///
    /// A full disk counts: retention and administrators make room. [`Error::Source`] does not: only the caller knows its stream.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Error::Unavailable { .. } | Error::Full { .. })
    }
}

fn wrong_installation(location: &str, expected: &Uuid, found: Option<&str>) -> String {
    match found {
        Some(found) => format!(
            "{location} belongs to installation {found}, not to {expected}: give each installation its own directory or prefix"
        ),
        None => format!(
            "{location} has no id file of installation {expected}: it is not the store that the other processes use, or it is not mounted"
        ),
    }
}
