//! Cancelling tasks.

use std::time::Duration;

use remuda_core::{Status, TaskId};
use remuda_store::Glance;

use super::watch::for_end;
use super::{ServiceError, ServiceResult, glance};
use crate::access::Caller;
use crate::state::AppState;

/// Cancels a task, and waits until it has ended if that is wanted. One that waits has ended when it returns; one that runs
/// is stopped by its runner. A task that was cancelled before is what was asked for.
pub(crate) async fn cancel(
    state: &AppState,
    caller: &Caller,
    id: TaskId,
    wait: Option<Duration>,
) -> ServiceResult<Glance> {
    glance(state, caller, id).await?;
    // Before anything is done: who is turned away has cancelled nothing.
    let _waiting = wait.map(|_| state.permits.waiting()).transpose()?;
    let follow = state.changes.follow(id);
    let seen = match state.store.cancel(id).await {
        Ok(task) => Glance::of(task),
        Err(remuda_store::Error::Finished(Status::Cancelled)) => glance(state, caller, id).await?,
        Err(error) => return Err(ServiceError::about(id)(error)),
    };
    match wait {
        Some(wait) => for_end(state, seen, follow, wait).await,
        None => Ok(seen),
    }
}
