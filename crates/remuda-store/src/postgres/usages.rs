//! What tenants have in the store, as far as this process knows.
//!
//! The counters in the database are exact, and summing them up costs more than a submission may. So what was read is used for a
//! moment, as long as a tenant is so far from its quota that nobody can bring it there within that moment. Whoever is nearer is
//! looked up with every batch, in its transaction: then only what is under way at the same moment is not seen.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postgres_types::Type;
use remuda_core::Tenant;
use remuda_core::quota::{Quota, Usage};
use tokio_postgres::Row;

use super::columns::Columns;
use super::fault::Fault;
use super::inner::Inner;
use super::load::USAGE;
use super::rows::get;
use super::session::{Transaction, attempt};
use crate::Result;

/// What was read so long ago is read again before it is used.
const STALE: Duration = Duration::from_secs(1);

/// More than all servers together take in while that lasts.
const FAR: Usage = Usage { waiting: 100_000, bytes: 64 << 30 };

/// More tenants than this are not remembered.
const KEPT: usize = 20_000;

#[derive(Debug)]
struct Known {
    usage: Usage,
    read: Instant,
}

/// What tenants have.
#[derive(Debug, Default)]
pub(super) struct Usages {
    known: Mutex<HashMap<Tenant, Known>>,
}

impl Usages {
    fn state(&self) -> MutexGuard<'_, HashMap<Tenant, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it must be read before something is admitted.
    pub(super) fn is_unsure(&self, tenant: &Tenant, quota: &Quota) -> bool {
        let sure = |known: &Known| known.read.elapsed() < STALE && quota.is_far_from(known.usage, FAR);
        !quota.is_none() && !self.state().get(tenant).is_some_and(sure)
    }

    /// What is known of it.
    pub(super) fn known(&self, tenant: &Tenant) -> Usage {
        self.state().get(tenant).map_or_else(Usage::default, |known| known.usage)
    }

    /// This much was read.
    pub(super) fn learn(&self, tenant: &Tenant, usage: Usage) {
        let read = Instant::now();
        let mut state = self.state();
        if state.len() >= KEPT {
            state.retain(|_, known| known.read.elapsed() < STALE);
        }
        state.insert(tenant.clone(), Known { usage, read });
    }

    /// This much was added by this process.
    pub(super) fn add<'a>(&self, more: impl Iterator<Item = (&'a Tenant, Usage)>) {
        let mut state = self.state();
        for (tenant, more) in more {
            if let Some(known) = state.get_mut(tenant) {
                known.usage.waiting += more.waiting;
                known.usage.bytes += more.bytes;
            }
        }
    }
}

fn one(tenant: &Tenant) -> Columns<'_> {
    Columns::default().with(Type::TEXT_ARRAY, vec![tenant.as_str()])
}

/// Who has no counters has nothing.
fn usage(rows: &[Row]) -> Result<Usage, Fault> {
    rows.first().map_or(Ok(Usage::default()), |row| Ok(Usage { waiting: get(row, 1)?, bytes: get(row, 2)? }))
}

/// What a tenant has at this moment.
pub(super) async fn read(transaction: &Transaction, tenant: &Tenant) -> Result<Usage, Fault> {
    usage(&transaction.query(USAGE, &one(tenant).params()).await?)
}

impl Inner {
    pub(super) async fn room(&self, tenant: &Tenant) -> Result<u64> {
        let quota = self.sessions.options().quota;
        if quota.bytes == 0 {
            return Ok(u64::MAX);
        }
        let look = async || usage(&self.sessions.query(USAGE, &one(tenant).params()).await?);
        let usage: Result<Usage> = attempt!(self.sessions, look());
        Ok(quota.room(usage?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_reach_its_quota_within_a_moment_is_looked_up() {
        let (usages, tenant) = (Usages::default(), Tenant::default_tenant());
        let quota = Quota { waiting: 1_000_000, bytes: 1 << 40 };
        let unsure = || usages.is_unsure(&tenant, &quota);
        assert!(unsure() && !usages.is_unsure(&tenant, &Quota::NONE));
        usages.learn(&tenant, Usage { waiting: 900_000, bytes: 0 });
        assert!(!unsure());
        usages.add([(&tenant, Usage { waiting: 1, bytes: 5 })].into_iter());
        assert!(unsure(), "it is near");
        assert_eq!(usages.known(&tenant), Usage { waiting: 900_001, bytes: 5 });
        usages.learn(&tenant, Usage { waiting: 0, bytes: (1 << 40) - (63 << 30) });
        assert!(unsure(), "it is near");
        assert!(usages.is_unsure(&tenant, &Quota { waiting: 10, bytes: 0 }), "a small quota is always near");
    }
}
