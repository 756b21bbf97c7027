//! Workers, what they offer, and what is asked of them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::{Fence, KeyId, Lane, LaneId, OwnerId, Requirements, Sha256, Worker, WorkerId, WorkerSpec};

use crate::{Acquired, Descriptions, Registrant, Result};

/// Workers, what their ComfyUIs say of their nodes, and what waiting tasks ask of them.
#[async_trait]
pub trait WorkerStore: fmt::Debug + Send + Sync + 'static {
    /// Registers a worker and takes its lease, if it is free, the caller's own, or run out.
    async fn acquire_worker(&self, spec: WorkerSpec, owner: OwnerId) -> Result<Acquired>;

    /// The same for a process elsewhere. [`crate::Error::Taken`] when the name is not that key's,
    /// [`crate::Error::TooMany`] when the key has as many workers as it may.
    async fn register_worker(&self, spec: WorkerSpec, owner: OwnerId, by: Registrant) -> Result<Acquired>;

    /// Whether this owner is a process elsewhere that held leases or workers before keys were part of owners, and is now
    /// known by this key. The first key that shows it within `grace` of the upgrade has it, if it is older than that; the
    /// processes of the installation are never taken.
    async fn inherit(&self, owner: OwnerId, key: KeyId, grace: Duration) -> Result<bool>;

    /// Lets go of a worker, so that another process can have it at once. Only its owner can.
    async fn release_worker(&self, owner: OwnerId, id: &WorkerId, fence: Fence) -> Result<()>;

    /// Forgets a worker that nobody holds.
    async fn forget_worker(&self, id: &WorkerId) -> Result<()>;

    /// All workers, by name, as they are when this is asked or later. Those who ask at the same time share one read.
    async fn workers(&self) -> Result<Arc<Vec<Worker>>>;

    /// The keys that workers were registered with. Those that the installation drives itself are not among them.
    async fn registrants(&self) -> Result<HashMap<WorkerId, KeyId>>;

    /// Keeps an `object_info` under its hash.
    async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()>;

    /// The same for a process elsewhere. What the key brought before and nobody uses makes room;
    /// [`crate::Error::TooMany`] when that is not enough.
    async fn bring_object_info(
        &self,
        hash: Sha256,
        json: &str,
        key: KeyId,
        bounds: Descriptions,
    ) -> Result<()>;

    /// Removes what no worker uses and nobody has brought for this long. How many it removed.
    async fn forget_object_info(&self, age: Duration) -> Result<u64>;

    /// An `object_info` by its hash.
    async fn object_info(&self, hash: Sha256) -> Result<Option<String>>;

    /// What a lane asks for, if it is one of a task that has not ended.
    async fn requires(&self, lane: &LaneId) -> Result<Option<Requirements>>;

    /// The lanes of tasks that have not ended.
    async fn lanes(&self) -> Result<Vec<Lane>>;
}
