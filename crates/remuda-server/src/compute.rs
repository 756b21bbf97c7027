//! Work of handlers that may take long: beside the runtime, bounded, fair between tenants.

use std::sync::Arc;

use axum::response::{IntoResponse as _, Response};
use http::header;
use remuda_core::{TaskId, Tenant};
use remuda_pool::{Kept, Work};
use serde::Serialize;

use crate::error::{ApiError, ApiResult};
use crate::permits::Submission;
use crate::share::Visit;
use crate::state::Shared;

/// How many times less it takes to hash a text than to read it.
pub(crate) const LIGHT: usize = 16;

/// What the body of the request that is answered here was charged, to be held by computations on it.
pub(crate) fn held() -> Kept {
    Arc::new(Visit::current().map(|visit| visit.held()))
}

impl Shared {
    /// Works on this many bytes of a request. What there is no room for is 503 or, if the caller itself has taken it, 429.
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
        let work = Work::new(what, tenant.as_str(), bytes).holding(held());
        Ok(self.pool.run(work, compute).await?)
    }

    /// Works on this many bytes of a request that was admitted as a submission. It waits for its turn and is not refused:
    /// how many of them there are is bounded already, and a burst is nothing bad.
    pub(crate) async fn compute_admitted<T, F>(
        &self,
        what: &'static str,
        tenant: &Tenant,
        admitted: &Submission,
        bytes: usize,
        compute: F,
    ) -> ApiResult<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let work = Work::new(what, tenant.as_str(), bytes).patient().holding(admitted.held());
        Ok(self.pool.run(work, compute).await?)
    }

    /// Works on this many bytes of a stored task. Waits for its turn: the number of those who read is bounded elsewhere.
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
        let work = Work::new(what, tenant.as_str(), bytes).of_task(task.0).patient().holding(held());
        Ok(self.pool.run(work, compute).await?)
    }
}

/// A large answer about a task, written beside the runtime.
pub(crate) async fn answer<T: Serialize + Send + 'static>(
    state: &Shared,
    tenant: &Tenant,
    task: TaskId,
    bytes: usize,
    value: T,
) -> ApiResult<Response> {
    let write = move || serde_json::to_vec(&value);
    let written = state.compute_of("writing a task", tenant, task, bytes, write).await?;
    let written = written.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], written).into_response())
}
