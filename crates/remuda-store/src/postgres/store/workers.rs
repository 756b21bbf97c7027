//! Workers, what they offer, and what is asked of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::{Fence, KeyId, Lane, LaneId, OwnerId, Requirements, Sha256, Worker, WorkerId, WorkerSpec};

use super::PostgresStore;
use crate::turns::Party;
use crate::{Acquired, Descriptions, Registrant, Result, WorkerStore};

#[async_trait]
impl WorkerStore for PostgresStore {
    async fn acquire_worker(&self, spec: WorkerSpec, owner: OwnerId) -> Result<Acquired> {
        self.inner.open()?;
        self.inner.acquire_worker(&spec, owner).await
    }

    async fn register_worker(&self, spec: WorkerSpec, owner: OwnerId, by: Registrant) -> Result<Acquired> {
        self.inner.open()?;
        self.inner.register_worker(&spec, owner, &by).await
    }

    async fn inherit(&self, owner: OwnerId, key: KeyId, grace: Duration) -> Result<bool> {
        self.inner.open()?;
        self.inner.inherit(owner, key, grace).await
    }

    async fn release_worker(&self, owner: OwnerId, id: &WorkerId, fence: Fence) -> Result<()> {
        self.inner.open()?;
        self.inner.release_worker(owner, id, fence).await
    }

    async fn forget_worker(&self, id: &WorkerId) -> Result<()> {
        self.inner.open()?;
        self.inner.forget_worker(id).await
    }

    async fn workers(&self) -> Result<Arc<Vec<Worker>>> {
        let read = async || {
            let _turn = self.inner.turn().await?;
            self.inner.workers().await
        };
        self.workers.ask(read).await
    }

    async fn registrants(&self) -> Result<HashMap<WorkerId, KeyId>> {
        let _turn = self.inner.turn().await?;
        self.inner.registrants().await
    }

    async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()> {
        let _turn = self.inner.turn_for_large(Party::House, json.len()).await?;
        self.inner.save_object_info(hash, json).await
    }

    async fn bring_object_info(
        &self,
        hash: Sha256,
        json: &str,
        key: KeyId,
        bounds: Descriptions,
    ) -> Result<()> {
        let _turn = self.inner.turn_for_large(Party::Key(key), json.len()).await?;
        self.inner.bring_object_info(hash, json, key, bounds).await
    }

    async fn forget_object_info(&self, age: Duration) -> Result<u64> {
        self.inner.open()?;
        // Once an hour in the whole installation, as the rest of this is.
        super::super::secrets::settle_late(&self.inner.sessions).await?;
        self.inner.forget_object_info(age).await
    }

    async fn object_info(&self, hash: Sha256) -> Result<Option<String>> {
        let _turn = self.inner.turn().await?;
        self.inner.object_info(hash).await
    }

    async fn requires(&self, lane: &LaneId) -> Result<Option<Requirements>> {
        self.inner.learn_lanes(&[lane.clone()].into()).await?;
        Ok(self.inner.lanes.requires(lane).map(|requires| (*requires).clone()))
    }

    async fn lanes(&self) -> Result<Vec<Lane>> {
        let _turn = self.inner.turn().await?;
        self.inner.load_lanes().await?;
        Ok(self.inner.lanes.all())
    }
}
