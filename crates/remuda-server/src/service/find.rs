//! Reading tasks.

use std::sync::Arc;

use remuda_core::{Attempt, Lease, OutputFile, PendingReason, Status, Task, TaskId, Tenant};
use remuda_store::{Glance, ListQuery, Page, Position};

use super::{ServiceError, ServiceResult};
use crate::access::Caller;
use crate::share::{Guest, PATIENCE, Pass, TurnedAway};
use crate::state::Shared;

/// How many of the last attempts are shown: a task that goes back again and again has attempts without end.
const ATTEMPTS: u32 = 100;

/// A task that the caller may see, without what may be long. Another tenant's is not there.
pub(crate) async fn glance(state: &Shared, caller: &Caller, id: TaskId) -> ServiceResult<Glance> {
    match state.store.glance(id).await? {
        Some(seen) if caller.sees(&seen.task.tenant) => Ok(seen),
        _ => Err(ServiceError::NoTask(id)),
    }
}

/// A task with everything that may be long. What is large is read when it is the caller's turn. It is counted while the pass is
/// held: as a row, as what is read of it, and as it is written.
pub(crate) async fn whole(
    state: &Shared,
    guest: &Arc<Guest>,
    seen: Glance,
) -> ServiceResult<(Task, Option<Pass>)> {
    let Glance { task, whole } = seen;
    if whole {
        return Ok((task, None));
    }
    let id = task.id;
    let size = state.store.task_size(id).await?.ok_or(ServiceError::NoTask(id))?;
    let amount = state.memory.fitting(size.saturating_mul(3));
    let pass = state.memory.wait(guest, amount, PATIENCE).await;
    let mut pass = pass.map_err(|_| TurnedAway::Memory)?;
    let _reading = state.permits.read().await?;
    let task = state.store.task(id).await?.ok_or(ServiceError::NoTask(id))?;
    // It may have ended since.
    let amount = state.memory.fitting(3 * task.text_bytes() as u64);
    pass.cover(amount).map_err(|_| TurnedAway::Memory)?;
    Ok((task, Some(pass)))
}

/// What is known of a task beside its record.
#[derive(Debug)]
pub(crate) struct Details {
    /// The last attempts.
    pub(crate) attempts: Vec<Attempt>,
    /// Who has it, while it runs.
    pub(crate) lease: Option<Lease>,
    /// How many are before it, while it is queued.
    pub(crate) position: Option<Position>,
}

/// What is known of a task beside its record.
pub(crate) async fn details(
    state: &Shared,
    id: TaskId,
    status: Status,
    reason: Option<PendingReason>,
) -> ServiceResult<Details> {
    let attempts = state.store.attempts(id, ATTEMPTS).await?;
    let lease = match status {
        Status::Running => state.store.lease(id).await?,
        _ => None,
    };
    let position = match reason {
        Some(PendingReason::Queued) => state.store.position(id).await?,
        _ => None,
    };
    Ok(Details { attempts, lease, position })
}

/// Which tasks are wanted.
#[derive(Debug)]
pub(crate) struct Wish {
    /// Only of this tenant; of all that the caller may see when absent.
    pub(crate) tenant: Option<Tenant>,
    /// Only in this state.
    pub(crate) status: Option<Status>,
    /// Only with this workflow id.
    pub(crate) workflow_id: Option<String>,
    /// Only older than this task.
    pub(crate) before: Option<TaskId>,
    /// No more than this many.
    pub(crate) limit: u32,
}

/// What the store is asked for a wish: only what the caller may see.
pub(crate) fn query(caller: &Caller, wish: Wish) -> ServiceResult<ListQuery> {
    let Wish { tenant, status, workflow_id, before, limit } = wish;
    let tenant = match tenant {
        None if caller.is_admin() => None,
        None => Some(caller.tenant.clone()),
        Some(tenant) if caller.sees(&tenant) => Some(tenant),
        Some(tenant) => return Err(ServiceError::ForeignTenant(tenant)),
    };
    Ok(ListQuery { tenant, status, workflow_id, before, limit })
}

/// A page of tasks, newest first.
pub(crate) async fn list(state: &Shared, query: &ListQuery) -> ServiceResult<Page> {
    Ok(state.store.list(query).await?)
}

/// One file that a task left.
pub(crate) async fn output(
    state: &Shared,
    guest: &Arc<Guest>,
    caller: &Caller,
    id: TaskId,
    n: i32,
) -> ServiceResult<OutputFile> {
    let seen = glance(state, caller, id).await?;
    let (task, _counted) = whole(state, guest, seen).await?;
    let files = task.result.map(|result| result.files).unwrap_or_default();
    let count = files.len();
    let found = files.into_iter().find(|file| file.n == n);
    found.ok_or(ServiceError::NoOutput { task: id, status: task.status, n, count })
}
