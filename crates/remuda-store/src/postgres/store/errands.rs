//! What is to be done outside when tasks have ended.

use std::time::Duration;

use async_trait::async_trait;
use remuda_core::{ErrandRecord, ErrandRef, TakenErrand, TaskId, Tenant};

use super::PostgresStore;
use crate::{ErrandStore, Result};

#[async_trait]
impl ErrandStore for PostgresStore {
    async fn take_errands(&self, limit: u32, busy: &[Tenant], hold: Duration) -> Result<Vec<TakenErrand>> {
        self.inner.open()?;
        self.inner.take_errands(limit, busy, hold).await
    }

    async fn hold_errand(&self, at: ErrandRef, hold: Duration) -> Result<bool> {
        self.inner.open()?;
        self.inner.hold_errand(at, hold).await
    }

    async fn finish_errand(&self, at: ErrandRef) -> Result<bool> {
        self.inner.open()?;
        self.inner.finish_errand(at).await
    }

    async fn fail_errand(&self, at: ErrandRef, why: &str, delay: Option<Duration>) -> Result<bool> {
        self.inner.open()?;
        self.inner.fail_errand(at, why, delay).await
    }

    async fn errands(&self, task: TaskId) -> Result<Vec<ErrandRecord>> {
        let _turn = self.inner.turn().await?;
        self.inner.errands(task).await
    }
}
