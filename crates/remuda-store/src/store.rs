//! The contract of the queue, in parts: who needs only one of them asks only for that.

mod documents;
mod errands;
mod housekeeping;
mod keys;
mod runners;
mod tasks;
mod workers;

use async_trait::async_trait;
use tokio::sync::broadcast;

pub use documents::DocumentStore;
pub use errands::ErrandStore;
pub use housekeeping::HousekeepingStore;
pub use keys::KeyStore;
pub use runners::RunnerStore;
pub use tasks::TaskStore;
pub use workers::WorkerStore;

use crate::{Change, Result};

/// How many bytes the data of events has that is read at once: when they are reached, the rest is read next.
pub const EVENTS_TEXT: usize = 256 << 10;

/// How many bytes the failures of attempts have that are read at once.
pub(crate) const ATTEMPTS_TEXT: usize = 1 << 20;

/// The durable queue: everything that is kept, in the parts that its users need.
///
/// A method that returned `Ok` is durable. After [`crate::Error::Unavailable`] it is not known whether a write was
/// done; every write may be repeated as it was: `submit` by its task id, writes of runners by their fence.
/// Futures may be dropped at any moment; what was claimed for a caller that is gone is given back.
///
/// Whoever holds a `dyn Store` calls the methods of all parts, and hands it on as the part that another needs:
///
/// ```
/// use remuda_store::{KeyStore, Store};
/// async fn count(keys: &dyn KeyStore) -> remuda_store::Result<usize> {
///     Ok(keys.keys().await?.len())
/// }
/// async fn is_open(store: &dyn Store) -> remuda_store::Result<bool> {
///     store.ping().await?;
///     Ok(count(store).await? == 0)
/// }
/// ```
#[async_trait]
pub trait Store:
    TaskStore + RunnerStore + WorkerStore + KeyStore + DocumentStore + ErrandStore + HousekeepingStore
{
    /// Whether it answers: a read that touches the disk or the server.
    async fn ping(&self) -> Result<()>;

    /// What happens to tasks, from now on, in this process and, where the database can tell, in others. A receiver
    /// that lags must read what it follows again.
    fn changes(&self) -> broadcast::Receiver<Change>;

    /// Finishes what was begun and lets go of everything. Later calls are [`crate::Error::Closed`].
    async fn close(&self);
}
