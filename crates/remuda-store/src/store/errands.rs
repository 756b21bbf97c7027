//! What is to be done outside when tasks have ended.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::{ErrandRecord, ErrandRef, TakenErrand, TaskId, Tenant};

use crate::Result;

/// What is to be done outside when tasks have ended: kept with the task, due in the commit that ends it.
///
/// An errand that was taken is somebody's for a while. If it is neither done nor given back by then, it is due again: whoever
/// took it may be gone. So errands are done at least once, and must be such that doing one again does no harm.
#[async_trait]
pub trait ErrandStore: fmt::Debug + Send + Sync + 'static {
    /// Takes errands that are due, the longest due first, none of the tenants that are `busy`. They are nobody else's for as
    /// long as `hold`.
    async fn take_errands(&self, limit: u32, busy: &[Tenant], hold: Duration) -> Result<Vec<TakenErrand>>;

    /// Keeps an errand for longer: `hold` from now. Whether it was still this try's.
    async fn hold_errand(&self, at: ErrandRef, hold: Duration) -> Result<bool>;

    /// It is done. Whether it was still this try's.
    async fn finish_errand(&self, at: ErrandRef) -> Result<bool>;

    /// The try failed because of `why`: the next one comes after `delay`, or never. Whether it was still this try's.
    async fn fail_errand(&self, at: ErrandRef, why: &str, delay: Option<Duration>) -> Result<bool>;

    /// The errands of a task, in their order.
    async fn errands(&self, task: TaskId) -> Result<Vec<ErrandRecord>>;
}
