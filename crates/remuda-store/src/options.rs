//! How a store behaves.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::{OwnerId, Policy};

use crate::{Clock, Keyring};

/// How a store behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Leases, retries, losses.
    pub policy: Policy,
    /// The process that opens it. A SQLite file has one: its leases do not expire while it holds the file.
    pub owner: OwnerId,
    /// Nothing is adopted from others before the store was up for so long, so that after an outage every owner can renew
    /// its leases first; and nothing counts as lost before there was time to adopt it after that.
    pub settle: Duration,
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
        Self { policy, owner, settle, clock: None, secrets: Keyring::default() }
    }
}
