//! Workers, what they offer, and what is asked of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::{Fence, KeyId, Lane, LaneId, OwnerId, Requirements, Sha256, Worker, WorkerId, WorkerSpec};

use super::super::reads;
use super::SqliteStore;
use crate::turns::Party;
use crate::{Acquired, Descriptions, Registrant, Result, WorkerStore};

#[async_trait]
impl WorkerStore for SqliteStore {
    async fn acquire_worker(&self, spec: WorkerSpec, owner: OwnerId) -> Result<Acquired> {
        self.write(move |batch| batch.acquire_worker(&spec, owner, None)).await
    }

    async fn register_worker(&self, spec: WorkerSpec, owner: OwnerId, by: Registrant) -> Result<Acquired> {
        self.write(move |batch| batch.acquire_worker(&spec, owner, Some(&by))).await
    }

    async fn inherit(&self, owner: OwnerId, key: KeyId, grace: Duration) -> Result<bool> {
        // Nearly all owners are new ones, and the writer has better things to do.
        if !self.look(move |db| reads::is_former_owner(db, owner)).await? {
            return Ok(false);
        }
        self.write(move |batch| batch.inherit(owner, key, grace)).await
    }

    async fn release_worker(&self, owner: OwnerId, id: &WorkerId, fence: Fence) -> Result<()> {
        let id = id.clone();
        self.write(move |batch| batch.release_worker(owner, &id, fence)).await
    }

    async fn forget_worker(&self, id: &WorkerId) -> Result<()> {
        let id = id.clone();
        self.write(move |batch| batch.forget_worker(&id)).await
    }

    async fn workers(&self) -> Result<Arc<Vec<Worker>>> {
        self.workers.ask(async || self.read(reads::workers).await).await
    }

    async fn registrants(&self) -> Result<HashMap<WorkerId, KeyId>> {
        self.read(reads::registrants).await
    }

    async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()> {
        let (json, turn) = (json.to_owned(), self.turns.take(Party::House, json.len()).await?);
        self.write(move |batch| {
            let _in_line = &turn;
            batch.save_object_info(hash, &json)
        })
        .await
    }

    async fn bring_object_info(
        &self,
        hash: Sha256,
        json: &str,
        key: KeyId,
        bounds: Descriptions,
    ) -> Result<()> {
        let (json, turn) = (json.to_owned(), self.turns.take(Party::Key(key), json.len()).await?);
        self.write(move |batch| {
            let _in_line = &turn;
            batch.bring_object_info(hash, &json, key, bounds)
        })
        .await
    }

    async fn forget_object_info(&self, age: Duration) -> Result<u64> {
        self.write(move |batch| batch.forget_object_info(age)).await
    }

    async fn object_info(&self, hash: Sha256) -> Result<Option<String>> {
        self.read(move |db| reads::object_info(db, hash)).await
    }

    async fn requires(&self, lane: &LaneId) -> Result<Option<Requirements>> {
        Ok(self.lanes.requires(lane).map(|requires| (*requires).clone()))
    }

    async fn lanes(&self) -> Result<Vec<Lane>> {
        Ok(self.lanes.all())
    }
}
