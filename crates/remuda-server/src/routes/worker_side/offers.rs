//! What the workers of sidecars offer, while their claims wait.
//!
//! Workers of one kind offer the same thousands of names, and a claim waits for long: equal offers are held once. The labels
//! are those that the worker was registered with, whatever a claim says.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use remuda_core::{Capabilities, Fence, WorkerId};
use remuda_pool::Work;
use remuda_store::{Error as StoreError, Store};
use sha2::{Digest as _, Sha256};

use super::sidecar::of_lease;
use crate::error::{ApiError, ApiResult};
use crate::share::{Guest, PATIENCE, Pass, Room, Visit};
use crate::state::AppState;

/// Offers below this are not worth sharing: the number of claims bounds them.
const SMALL: u64 = 16 << 10;

/// What a name takes in memory besides its text.
const NAME: u64 = 64;

/// How many workers' labels are remembered.
const MOST: usize = 20_000;

/// What a worker offers, held once for all that offer the same.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) capabilities: Arc<Capabilities>,
    /// Charged to whoever came first.
    _pass: Option<Pass>,
}

/// What is offered at the moment.
#[derive(Debug, Default)]
pub(super) struct Offers {
    held: Mutex<HashMap<[u8; 32], Weak<Offer>>>,
    /// The labels that workers were registered with, under their last number. Another registration is another number.
    labels: Mutex<HashMap<WorkerId, (Fence, BTreeSet<String>)>>,
}

impl Offers {
    fn held(&self) -> MutexGuard<'_, HashMap<[u8; 32], Weak<Offer>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The offer of a claim, to be held while the claim waits. The body that it came in is given back.
    pub(super) async fn take_up(
        &self,
        state: &AppState,
        worker: &WorkerId,
        fence: Fence,
        mut capabilities: Arc<Capabilities>,
    ) -> ApiResult<Arc<Offer>> {
        let labels = self.labels(&*state.store, worker, fence).await?;
        if capabilities.labels != labels {
            Arc::make_mut(&mut capabilities).labels = labels;
        }
        let names = capabilities.nodes.len() + capabilities.models.len();
        let work = Work::new("comparing what workers offer", worker.as_str(), names * 64).patient();
        let weighed = state.pool.run(work, move || {
            let (hash, size) = weigh(&capabilities);
            (capabilities, hash, size)
        });
        let (capabilities, hash, size) = weighed.await.map_err(ApiError::from)?;
        if let Some(visit) = Visit::current() {
            visit.settle();
        }
        self.share(&state.memory, &Visit::guest(), capabilities, hash, size).await
    }

    async fn share(
        &self,
        memory: &Room,
        guest: &Arc<Guest>,
        capabilities: Arc<Capabilities>,
        hash: [u8; 32],
        size: u64,
    ) -> ApiResult<Arc<Offer>> {
        if size <= SMALL {
            return Ok(Arc::new(Offer { capabilities, _pass: None }));
        }
        if let Some(offer) = self.held().get(&hash).and_then(Weak::upgrade) {
            return Ok(offer);
        }
        let pass = memory.wait(guest, size, PATIENCE).await.map_err(|_| ApiError::no_memory())?;
        let mut held = self.held();
        // Another may have brought the same meanwhile.
        if let Some(offer) = held.get(&hash).and_then(Weak::upgrade) {
            return Ok(offer);
        }
        held.retain(|_, offer| offer.strong_count() > 0);
        let offer = Arc::new(Offer { capabilities, _pass: Some(pass) });
        held.insert(hash, Arc::downgrade(&offer));
        Ok(offer)
    }

    /// A worker was registered with these labels.
    pub(super) fn registered(&self, worker: &WorkerId, fence: Fence, labels: BTreeSet<String>) {
        let mut known = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST && !known.contains_key(worker) {
            known.clear();
        }
        known.insert(worker.clone(), (fence, labels));
    }

    fn known(&self, worker: &WorkerId, fence: Fence) -> Option<BTreeSet<String>> {
        let known = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(worker).filter(|(of, _)| *of == fence).map(|(_, labels)| labels.clone())
    }

    /// The labels that a worker was registered with under this number.
    async fn labels(
        &self,
        store: &dyn Store,
        worker: &WorkerId,
        fence: Fence,
    ) -> ApiResult<BTreeSet<String>> {
        if let Some(labels) = self.known(worker, fence) {
            return Ok(labels);
        }
        // It was registered at another server, or before this one started.
        let workers = store.workers().await.map_err(of_lease)?;
        let found = workers.iter().find(|found| found.spec.id == *worker && found.fence == fence);
        let labels = found.ok_or(StoreError::Fenced)?.spec.labels.clone();
        self.registered(worker, fence, labels.clone());
        Ok(labels)
    }
}

/// What is equal for equal offers, and how much memory one takes.
fn weigh(capabilities: &Capabilities) -> ([u8; 32], u64) {
    let Capabilities { labels, nodes, models } = capabilities;
    let mut hash = Sha256::new();
    let mut size = 0;
    for names in [labels, nodes, models] {
        hash.update(names.len().to_le_bytes());
        for name in names {
            hash.update(name.len().to_le_bytes());
            hash.update(name.as_bytes());
            size += name.len() as u64 + NAME;
        }
    }
    (hash.finalize().into(), size)
}

#[cfg(test)]
mod tests {
    use remuda_core::Tenant;

    use super::*;

    fn offer(names: usize, last: &str) -> Arc<Capabilities> {
        let mut models: BTreeSet<String> = (0..names).map(|n| format!("{n}.safetensors")).collect();
        models.insert(last.to_owned());
        Arc::new(Capabilities { models, ..Capabilities::default() })
    }

    #[tokio::test]
    async fn equal_offers_are_held_and_charged_once() {
        let (offers, memory) = (Offers::default(), Room::new(4 << 20));
        let guest = Arc::new(Guest { tenant: Some(Tenant::new("a").unwrap()), address: None });
        let take = async |capabilities: Arc<Capabilities>| {
            let (hash, size) = weigh(&capabilities);
            offers.share(&memory, &guest, capabilities, hash, size).await.unwrap()
        };
        let many: Vec<_> = futures_util::future::join_all((0..100).map(|_| take(offer(20_000, "z")))).await;
        assert!(many.iter().all(|one| Arc::ptr_eq(one, &many[0])));
        let other = take(offer(1_000, "y")).await;
        assert!(!Arc::ptr_eq(&other, &many[0]));
        assert_eq!(offers.held().len(), 2);
        assert!(memory.take(&guest, 3 << 20).is_err(), "it is counted");
        drop((many, other));
        assert!(memory.take(&guest, 3 << 20).is_ok(), "and given back");
        let small = take(offer(3, "x")).await;
        assert_eq!(offers.held().len(), 2, "small ones are not shared");
        drop(small);
    }
}
