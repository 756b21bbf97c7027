//! How a store behaves.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::admission::{Bounds, Refusal};
use remuda_core::quota::{OverQuota, Quota};
use remuda_core::{OwnerId, Policy};

use crate::{Clock, Error, Keyring};

/// How a store behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Leases, retries, losses.
    pub policy: Policy,
    /// The process that opens it. A SQLite file has one: its leases do not expire while it holds the file.
    pub owner: OwnerId,
    /// Nothing is adopted from others before the store was up for this long, so that after an outage every owner can renew
    /// its leases first; and nothing counts as lost before there was time to adopt it after that.
    pub settle: Duration,
    /// What one tenant may keep here.
    pub documents: DocumentLimits,
    /// How many different requirements the unfinished tasks of one tenant may have: 1,000. Each is a lane, which is kept in
    /// memory and looked at.
    pub max_lanes: u64,
    /// How many tasks of one tenant may wait, and how many bytes its tasks and assets may take: 10,000,000 and 10 TiB.
    pub quota: Quota,
    /// Instead of the machine's (SQLite) or the database's (PostgreSQL).
    pub clock: Option<Arc<dyn Clock>>,
    /// Under which secrets are sealed. Without a key tasks that bring secrets are refused.
    pub secrets: Keyring,
}

impl Options {
    /// The defaults, for this process.
    pub fn new(owner: OwnerId) -> Self {
        let policy = Policy::default();
        let settle = policy.lease + policy.adoption;
        Self {
            policy,
            owner,
            settle,
            documents: DocumentLimits::default(),
            max_lanes: 1_000,
            quota: Quota { waiting: 10_000_000, bytes: 10 << 40 },
            clock: None,
            secrets: Keyring::default(),
        }
    }

    /// How much one tenant may have, as it is decided.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { quota: self.quota, lanes: self.max_lanes }
    }
}

impl From<OverQuota> for Error {
    fn from(over: OverQuota) -> Self {
        let limit = match over {
            OverQuota::Waiting(_) => "tasks.max_waiting",
            OverQuota::Bytes(_) => "tasks.max_stored",
        };
        Self::OverLimit { limit, message: over.to_string() }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Conflict(task) => Self::Conflict { task },
            Refusal::OverQuota(over) => over.into(),
            Refusal::TooManyLanes(_) => {
                Self::OverLimit { limit: "tasks.max_lanes", message: refusal.to_string() }
            }
        }
    }
}

/// How many documents one tenant may keep, and how large they may be together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentLimits {
    /// How many: 20,000.
    pub count: u64,
    /// Bytes of all of them: 1 GiB.
    pub bytes: u64,
}

impl Default for DocumentLimits {
    fn default() -> Self {
        Self { count: 20_000, bytes: 1 << 30 }
    }
}

impl DocumentLimits {
    /// What a tenant is told that has one document too many, or too large a one. What it has, before and after the write.
    pub(crate) fn check(&self, before: Kept, after: Kept) -> Result<(), Error> {
        if after.count > self.count && after.count > before.count {
            let message = format!("there are {} documents of this tenant already: delete some", before.count);
            return Err(Error::OverLimit { limit: "server.documents", message });
        }
        if after.bytes > self.bytes && after.bytes > before.bytes {
            let most = self.bytes;
            let message =
                format!("the documents of this tenant would have more than {most} bytes: delete some");
            return Err(Error::OverLimit { limit: "server.document_bytes", message });
        }
        Ok(())
    }
}

/// What a tenant keeps here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Kept {
    /// With a document in the place of another, if there was one.
    pub(crate) fn with(self, size: u64, instead_of: Option<u64>) -> Self {
        Self {
            count: self.count + u64::from(instead_of.is_none()),
            bytes: (self.bytes + size).saturating_sub(instead_of.unwrap_or(0)),
        }
    }
}

/// Under how many names one tenant may have the same content: all of them are deleted at once.
pub(crate) const MOST_NAMES: i64 = 1_000;

/// Why a further name is refused.
pub(crate) fn too_many_names() -> Error {
    let message =
        format!("one content may have {MOST_NAMES} names: delete it, or use one of those that it has");
    Error::OverLimit { limit: "names_of_asset", message }
}
