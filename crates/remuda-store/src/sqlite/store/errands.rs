//! What is to be done outside when tasks have ended.

use std::time::Duration;

use async_trait::async_trait;
use remuda_core::{ErrandRecord, ErrandRef, TakenErrand, TaskId, Tenant};

use super::super::errands;
use super::SqliteStore;
use crate::{ErrandStore, Result};

#[async_trait]
impl ErrandStore for SqliteStore {
    async fn take_errands(&self, limit: u32, busy: &[Tenant], hold: Duration) -> Result<Vec<TakenErrand>> {
        let busy = busy.to_vec();
        self.write(move |batch| batch.take_errands(limit, &busy, hold)).await
    }

    async fn hold_errand(&self, at: ErrandRef, hold: Duration) -> Result<bool> {
        self.write(move |batch| batch.hold_errand(at, hold)).await
    }

    async fn finish_errand(&self, at: ErrandRef) -> Result<bool> {
        self.write(move |batch| batch.finish_errand(at)).await
    }

    async fn fail_errand(&self, at: ErrandRef, why: &str, delay: Option<Duration>) -> Result<bool> {
        let why = why.to_owned();
        self.write(move |batch| batch.fail_errand(at, &why, delay)).await
    }

    async fn errands(&self, task: TaskId) -> Result<Vec<ErrandRecord>> {
        self.look(move |db| errands::of_task(db, task)).await
    }
}
