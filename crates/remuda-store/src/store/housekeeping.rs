//! What must be done from time to time, and who does it.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::{Fence, OwnerId, Task, TaskId};

use crate::{Result, Tidied};

/// What must be done from time to time, and who does it.
#[async_trait]
pub trait HousekeepingStore: fmt::Debug + Send + Sync + 'static {
    /// Becomes or stays the one process that does `what`, for `ttl`. `None`: another one is.
    async fn lead(&self, what: &str, holder: OwnerId, ttl: Duration) -> Result<Option<Fence>>;

    /// Steps down.
    async fn resign(&self, what: &str, holder: OwnerId) -> Result<()>;

    /// Releases tasks whose moment has come, loses those whose process is gone, expires those whose deadline
    /// passed. Any process may do it at any time.
    async fn tidy(&self) -> Result<Tidied>;

    /// Ended tasks whose earlier or discarded attempts may have left files, oldest first.
    async fn unswept(&self, limit: u32) -> Result<Vec<Task>>;

    /// Those files are gone.
    async fn swept(&self, tasks: &[TaskId]) -> Result<()>;

    /// Tasks that ended longer ago than `age`, oldest first: their files go first, then they are forgotten.
    async fn outdated(&self, age: Duration, limit: u32) -> Result<Vec<TaskId>>;

    /// Removes what happened longer ago than `age` from the feed. How many rows it removed.
    async fn trim_feed(&self, age: Duration) -> Result<u64>;

    /// Removes ended tasks with everything the store has of them.
    async fn forget(&self, tasks: &[TaskId]) -> Result<u64>;
}
