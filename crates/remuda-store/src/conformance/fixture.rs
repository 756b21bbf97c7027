//! What the suite needs of a backend.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Options, Result, Store};

/// One place where a store can be: a folder, a database. Empty at first, gone when it is dropped.
#[async_trait]
pub trait Fixture: fmt::Debug + Send + Sync + 'static {
    /// Opens the store that is there, and makes it the first time, as a process with these options would.
    async fn open(&self, options: Options) -> Result<Arc<dyn Store>>;

    /// Whether several processes may have it open at the same time. If not, a second one must get
    /// [`crate::Error::InUse`] before the first has closed it.
    fn is_shared(&self) -> bool;
}

/// Ends a case that hangs, so that it fails under its own name.
#[doc(hidden)]
pub async fn in_time(case: impl Future<Output = ()>) {
    let limit = std::time::Duration::from_secs(600);
    assert!(tokio::time::timeout(limit, case).await.is_ok(), "the case did not end within {limit:?}");
}
