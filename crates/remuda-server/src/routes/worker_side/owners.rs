//! Which owner a sidecar is: its key and the id that it tells, together.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use remuda_core::{KeyId, OwnerId};
use remuda_store::Store;
use tokio::time::Instant;

/// After an upgrade from the schema in which the id alone was the owner, a sidecar has this long to come back and keep what
/// it held. Its leases ran out long before that.
const GRACE: Duration = Duration::from_secs(24 * 3600);

/// How long an answer of the store is believed.
const FRESH: Duration = Duration::from_secs(60);

/// How many answers are kept.
const MOST: usize = 10_000;

/// What the store said of sidecars.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: Mutex<HashMap<(KeyId, OwnerId), (OwnerId, Instant)>>,
}

impl Owners {
    /// The owner that a process is which shows this key and tells this id. Most are made of both; one that held leases
    /// before keys were part of owners goes on under its id alone.
    pub(super) async fn of(
        &self,
        store: &dyn Store,
        key: KeyId,
        told: OwnerId,
    ) -> remuda_store::Result<OwnerId> {
        let known = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&(key, told)).copied()
        };
        if let Some((owner, read)) = known
            && read.elapsed() < FRESH
        {
            return Ok(owner);
        }
        let read = Instant::now();
        let inherits = store.inherit(told, key, GRACE).await?;
        let owner = if inherits { told } else { OwnerId::elsewhere(key, told) };
        if inherits && known.is_none() {
            tracing::info!(%key, %owner, "a sidecar keeps what it held before the upgrade");
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert((key, told), (owner, read));
        Ok(owner)
    }
}
