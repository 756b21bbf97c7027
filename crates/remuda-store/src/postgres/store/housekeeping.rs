//! What must be done from time to time, and who does it.

use std::time::Duration;

use async_trait::async_trait;
use remuda_core::{Fence, OwnerId, Task, TaskId};

use super::PostgresStore;
use crate::{HousekeepingStore, Result, Tidied};

#[async_trait]
impl HousekeepingStore for PostgresStore {
    async fn lead(&self, what: &str, holder: OwnerId, ttl: Duration) -> Result<Option<Fence>> {
        self.inner.open()?;
        self.inner.lead(what, holder, ttl).await
    }

    async fn resign(&self, what: &str, holder: OwnerId) -> Result<()> {
        self.inner.open()?;
        self.inner.resign(what, holder).await
    }

    async fn tidy(&self) -> Result<Tidied> {
        self.inner.open()?;
        self.inner.tidy().await
    }

    async fn unswept(&self, limit: u32) -> Result<Vec<Task>> {
        let _turn = self.inner.turn().await?;
        self.inner.unswept(limit).await
    }

    async fn swept(&self, tasks: &[TaskId]) -> Result<()> {
        self.inner.open()?;
        self.inner.swept(tasks).await
    }

    async fn outdated(&self, age: Duration, limit: u32) -> Result<Vec<TaskId>> {
        let _turn = self.inner.turn().await?;
        self.inner.outdated(age, limit).await
    }

    async fn trim_feed(&self, age: Duration) -> Result<u64> {
        let _turn = self.inner.turn().await?;
        self.inner.trim_feed(age).await
    }

    async fn forget(&self, tasks: &[TaskId]) -> Result<u64> {
        self.inner.open()?;
        self.inner.forget(tasks).await
    }
}
