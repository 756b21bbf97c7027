//! The contract, handed on to the parts that keep it.

mod documents;
mod errands;
mod housekeeping;
mod keys;
mod runners;
mod tasks;
mod workers;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use remuda_core::Worker;
use tokio::sync::broadcast;

use super::inner::Inner;
use crate::together::Together;
use crate::{Change, Options, Result, Store};

/// The queue in a PostgreSQL database, shared by any number of processes.
///
/// ```no_run
/// # async fn example() -> remuda_store::Result<()> {
/// use remuda_store::{Options, PostgresStore, Store as _};
/// let owner = remuda_core::OwnerId(uuid::Uuid::new_v4());
/// let store = PostgresStore::connect("postgres://remuda@127.0.0.1/remuda", Options::new(owner)).await?;
/// store.ping().await?;
/// store.close().await;
/// # Ok(()) }
/// ```
pub struct PostgresStore {
    inner: Arc<Inner>,
    workers: Together<Vec<Worker>>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("installation", &self.inner.installation.id)
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects to the database at `url` (`postgres://user:password@host:port/database?sslmode=…`), makes or
    /// updates the schema `remuda` in it, and is ready.
    pub async fn connect(url: &str, options: Options) -> Result<Self> {
        Ok(Self { inner: Inner::start(url, options).await?, workers: Together::default() })
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        // Whoever did not wait for `close` still leaves nothing running.
        self.inner.queue.close();
        self.inner.stop.cancel();
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn ping(&self) -> Result<()> {
        self.inner.open()?;
        self.inner.ping().await
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.inner.changes.subscribe()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
