//! Tasks as the clients of one dialect see them: by the names that they gave them, in their lists, and until they hide them.
//!
//! A dialect asks for what came in through it. Whose the tasks are is the tenant of the caller, in every question.

use std::sync::Arc;

use remuda_core::{Dialect, Lease, Task, TaskId, TaskInput, Tenant};
use remuda_store::{Error, Glance, Hide, LookedUp, Lookup, OriginPage, OriginQuery};

use super::{ServiceError, ServiceResult};
use crate::share::{Guest, PATIENCE, Pass, TurnedAway};
use crate::state::Shared;

/// A task by its id or by its client's name for it, with what it runs if that is wanted.
pub(crate) async fn look_up(
    state: &Shared,
    lookup: Lookup,
) -> ServiceResult<Option<(Task, Option<TaskInput>)>> {
    Ok(state.store.look_up(lookup).await?)
}

/// The same, without what it left if that is much.
pub(crate) async fn look_up_briefly(state: &Shared, lookup: &Lookup) -> ServiceResult<Option<Task>> {
    Ok(match state.store.look_up_small(lookup).await? {
        LookedUp::Small(found) => found.map(|(task, _)| task),
        LookedUp::Large { task, .. } => state.store.glance(task).await?.map(|seen| seen.task),
    })
}

/// The same with all of it. What is large is read when there is room for it and for a text that is made of it.
pub(crate) async fn look_up_counted(
    state: &Shared,
    guest: &Arc<Guest>,
    lookup: Lookup,
) -> ServiceResult<(Option<(Task, Option<TaskInput>)>, Option<Pass>)> {
    let bytes = match state.store.look_up_small(&lookup).await? {
        LookedUp::Small(found) => return Ok((found, None)),
        LookedUp::Large { bytes, .. } => bytes,
    };
    let room = state.memory.wait(guest, state.memory.fitting(bytes.saturating_mul(2)), PATIENCE).await;
    let room = room.map_err(|_| TurnedAway::Memory)?;
    let _reading = state.permits.read().await?;
    Ok((state.store.look_up(lookup).await?, Some(room)))
}

/// A page of the tasks of a dialect. What results may be long is not in it.
pub(crate) async fn list_origin(state: &Shared, query: &OriginQuery) -> ServiceResult<OriginPage> {
    Ok(state.store.list_origin(query).await?)
}

/// How many tasks of a dialect have not ended.
pub(crate) async fn unfinished(state: &Shared, tenant: &Tenant, dialect: Dialect) -> ServiceResult<i64> {
    Ok(state.store.unfinished(tenant, dialect, None).await?)
}

/// A task from such a list with its result; `None` when it was forgotten since.
pub(crate) async fn recall(state: &Shared, task: TaskId) -> ServiceResult<Option<Task>> {
    Ok(state.store.task(task).await?)
}

/// What such a task runs; `None` when it was forgotten since.
pub(crate) async fn input(state: &Shared, task: TaskId) -> ServiceResult<Option<TaskInput>> {
    Ok(state.store.input(task).await?)
}

/// Who has such a task, while it runs.
pub(crate) async fn lease(state: &Shared, task: TaskId) -> ServiceResult<Option<Lease>> {
    Ok(state.store.lease(task).await?)
}

/// Takes tasks out of the lists of a dialect. Their records stay.
pub(crate) async fn hide(state: &Shared, tenant: &Tenant, dialect: Dialect, what: Hide) -> ServiceResult<()> {
    state.store.hide(tenant, dialect, &what).await?;
    Ok(())
}

/// Cancels a task that its door knows to be its caller's, because it took it in or found it. `None`: it had ended before.
pub(crate) async fn stop(state: &Shared, task: TaskId) -> ServiceResult<Option<Glance>> {
    match state.store.cancel(task).await {
        Ok(task) => Ok(Some(Glance::of(task))),
        Err(Error::Finished(_)) => Ok(None),
        Err(Error::NotFound { .. }) => Err(ServiceError::NoTask(task)),
        Err(error) => Err(ServiceError::about(task)(error)),
    }
}

/// How a task is that its door knows to be its caller's.
pub(crate) async fn seen(state: &Shared, task: TaskId) -> ServiceResult<Glance> {
    state.store.glance(task).await?.ok_or(ServiceError::NoTask(task))
}
