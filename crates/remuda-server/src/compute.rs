//! Work of handlers that may take long: beside the runtime, bounded, fair between tenants.

use std::sync::Arc;

use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use remuda_core::{TaskId, Tenant};
use remuda_pool::{Kept, NotDone, Work};
use serde::Serialize;

use crate::error::{ApiError, ApiResult};
use crate::permits::Submission;
use crate::share::Visit;
use crate::state::Shared;

/// To hash a text takes so much less than to read it.
pub(crate) const LIGHT: usize = 16;

/// What the body of the request that is answered here was charged, to be held by computations on it.
pub(crate) fn held() -> Kept {
    Arc::new(Visit::current().map(|visit| visit.held()))
}

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
        let work = Work::new(what, tenant.as_str(), bytes).holding(held());
        Ok(self.pool.run(work, compute).await?)
    }

    /// Works on so many bytes of a request that was admitted as a submission. It waits for its turn and is not refused:
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

impl From<NotDone> for ApiError {
    fn from(error: NotDone) -> Self {
        match error {
            NotDone::Busy => Self::busy("large requests"),
            NotDone::Share => Self::over_limit(
                "process.pool_queue",
                "too many of your large requests wait already: try again in a moment",
            ),
            NotDone::Stalled => {
                let error =
                    "what was sent is too complex: working on it took longer than process.watchdog allows";
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_turned_away_hears_by_what() {
        for (error, status, code, limit, retry) in [
            (NotDone::Busy, 503, "busy", None, true),
            (NotDone::Share, 429, "over_limit", Some("process.pool_queue"), true),
            (NotDone::Stalled, 422, "too_complex", Some("process.watchdog"), false),
            (NotDone::Closed, 503, "stopping", None, false),
            (NotDone::Panicked("x".to_owned()), 500, "internal", None, false),
        ] {
            let new = ApiError::from(error);
            assert_eq!((new.status.as_u16(), new.body.code, new.body.limit), (status, code, limit));
            assert_eq!(new.retry_after_s().is_some(), retry, "{code}");
        }
    }
}
