//! The `number` that every prompt gets: a counter per tenant, as one ComfyUI has one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use remuda_core::{Dialect, Status, Tenant};
use remuda_store::{OriginOrder, OriginQuery, TaskStore};

/// The largest whole number that a float holds exactly.
const LARGEST: f64 = 9_007_199_254_740_992.0;

/// The next number of every tenant that has sent prompts to this process.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    next: Mutex<HashMap<Tenant, u64>>,
}

impl Numbers {
    /// The next number, and the counter moves on.
    ///
    /// After a restart it goes on after the tenant's newest prompt, so that lists which clients sort by it stay in
    /// order. Several gateways may give the same number: nothing of ours depends on it.
    pub(super) async fn next(&self, store: &dyn TaskStore, tenant: &Tenant) -> remuda_store::Result<u64> {
        self.begin(store, tenant).await?;
        let mut next = self.next_numbers();
        let number = next.entry(tenant.clone()).or_default();
        *number += 1;
        Ok(*number - 1)
    }

    /// What the next number will be.
    pub(super) async fn current(&self, store: &dyn TaskStore, tenant: &Tenant) -> remuda_store::Result<u64> {
        self.begin(store, tenant).await?;
        Ok(self.next_numbers().get(tenant).copied().unwrap_or_default())
    }

    /// Finds out where to go on, once.
    async fn begin(&self, store: &dyn TaskStore, tenant: &Tenant) -> remuda_store::Result<()> {
        if !self.next_numbers().contains_key(tenant) {
            let begin = newest(store, tenant).await?.map_or(0, |number| number + 1);
            // Another may have been faster, and given some already.
            self.next_numbers().entry(tenant.clone()).or_insert(begin);
        }
        Ok(())
    }

    fn next_numbers(&self) -> MutexGuard<'_, HashMap<Tenant, u64>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of the tenant's newest prompt.
async fn newest(store: &dyn TaskStore, tenant: &Tenant) -> remuda_store::Result<Option<u64>> {
    let query = OriginQuery {
        tenant: tenant.clone(),
        dialect: Dialect::COMFYUI,
        client: None,
        statuses: Status::ALL.to_vec(),
        workflow_id: None,
        order: OriginOrder::NewestFirst,
        offset: 0,
        limit: 1,
    };
    let Some(task) = store.list_origin(&query).await?.tasks.pop() else { return Ok(None) };
    let extra = store.input(task.id).await?.and_then(|input| input.extra);
    // A client may have chosen any; one that our counter cannot have given is no place to go on from.
    let number =
        extra.map(|extra| extra.number.abs()).filter(|number| number.fract() == 0.0 && *number < LARGEST);
    Ok(number.map(|number| number as u64))
}
