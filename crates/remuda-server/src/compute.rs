//! Work of handlers that may take long: beside the runtime, bounded, fair between tenants.

use http::StatusCode;
use remuda_core::{TaskId, Tenant};
use remuda_pool::{NotDone, Work};

use crate::error::{ApiError, ApiResult};
use crate::state::Shared;

impl Shared {
    /// Works on so many bytes of a request. What there is no room for is 503 or, if the caller itself has taken it, 429.
    pub(crate) async fn compute<T, F>(
        &self,
        what: &'static str,
        tenant: &Tenant,
        bytes: usize,
        compute: F,
    ) -> ApiResult<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        Ok(self.pool.run(Work::new(what, tenant.as_str(), bytes), compute).await?)
    }

    /// Works on so many bytes of a stored task. Waits for its turn: the number of those who read is bounded elsewhere.
    pub(crate) async fn compute_of<T, F>(
        &self,
        what: &'static str,
        tenant: &Tenant,
        task: TaskId,
        bytes: usize,
        compute: F,
    ) -> ApiResult<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let work = Work::new(what, tenant.as_str(), bytes).of_task(task.0).patient();
        Ok(self.pool.run(work, compute).await?)
    }
}

impl From<NotDone> for ApiError {
    fn from(error: NotDone) -> Self {
        match error {
            NotDone::Busy => Self::busy("large requests"),
            NotDone::Share => Self::over_limit(
                "process.pool_queue",
                "too many of your large requests wait already: try again in a moment",
            ),
            NotDone::Stalled => {
                let error = "what was sent is too complex: working on it took longer than process.watchdog allows";
                let mut new = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "too_complex", error);
                new.body.limit = Some("process.watchdog");
                new
            }
            NotDone::Panicked(text) => Self::internal(format!("a computation panicked: {text}")),
            NotDone::Closed => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping")
            }
        }
    }
}
