//! What must be done from time to time, and who does it.

use std::time::Duration;

use async_trait::async_trait;
use remuda_core::{Fence, OwnerId, Task, TaskId};

use super::super::reads;
use super::SqliteStore;
use crate::{HousekeepingStore, Result, Tidied};

/// How many tasks are forgotten in one transaction: each may have much text.
const FORGOTTEN_AT_ONCE: usize = 10;

#[async_trait]
impl HousekeepingStore for SqliteStore {
    async fn lead(&self, what: &str, holder: OwnerId, ttl: Duration) -> Result<Option<Fence>> {
        let what = what.to_owned();
        self.write(move |batch| batch.lead(&what, holder, ttl)).await
    }

    async fn resign(&self, what: &str, holder: OwnerId) -> Result<()> {
        let what = what.to_owned();
        self.write(move |batch| batch.resign(&what, holder)).await
    }

    async fn tidy(&self) -> Result<Tidied> {
        self.write(|batch| batch.tidy()).await
    }

    async fn unswept(&self, limit: u32) -> Result<Vec<Task>> {
        self.read(move |db| reads::unswept(db, limit)).await
    }

    async fn swept(&self, tasks: &[TaskId]) -> Result<()> {
        let tasks = tasks.to_vec();
        self.write(move |batch| batch.swept(&tasks)).await
    }

    async fn outdated(&self, age: Duration, limit: u32) -> Result<Vec<TaskId>> {
        let now = self.settings.now();
        self.read(move |db| reads::outdated(db, now, age, limit)).await
    }

    async fn trim_feed(&self, age: Duration) -> Result<u64> {
        let mut removed = 0;
        loop {
            let (count, more) = self.write(move |batch| batch.trim_feed(age)).await?;
            removed += count;
            if !more {
                return Ok(removed);
            }
        }
    }

    async fn forget(&self, tasks: &[TaskId]) -> Result<u64> {
        let mut forgotten = 0;
        for some in tasks.chunks(FORGOTTEN_AT_ONCE) {
            let some = some.to_vec();
            forgotten += self.write(move |batch| batch.forget(&some)).await?;
        }
        Ok(forgotten)
    }
}
