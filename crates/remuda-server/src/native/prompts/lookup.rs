//! From what a client calls a prompt to the task behind it.

use remuda_core::{Dialect, Task, TaskInput, Tenant};
use remuda_store::Lookup;

use crate::native::names;
use crate::state::AppState;

/// The prompt that this tenant's clients call so. Another tenant's is not there, nor is a task that came in by another
/// door.
pub(crate) async fn find(state: &AppState, tenant: &Tenant, id: &str) -> remuda_store::Result<Option<Task>> {
    Ok(look_up(state, tenant, id, false).await?.map(|(task, _)| task))
}

/// The same, with what it runs; together, unless it was forgotten.
pub(super) async fn find_whole(
    state: &AppState,
    tenant: &Tenant,
    id: &str,
) -> remuda_store::Result<Option<(Task, TaskInput)>> {
    Ok(look_up(state, tenant, id, true).await?.and_then(|(task, input)| Some((task, input?))))
}

async fn look_up(
    state: &AppState,
    tenant: &Tenant,
    id: &str,
    input: bool,
) -> remuda_store::Result<Option<(Task, Option<TaskInput>)>> {
    let key = names::is_prompt_id(id).then(|| names::idempotency_key(id));
    let lookup = Lookup { tenant: tenant.clone(), key, id: id.parse().ok(), input };
    if lookup.key.is_none() && lookup.id.is_none() {
        return Ok(None);
    }
    let found = state.store.look_up(lookup).await?;
    Ok(found.filter(|(task, _)| is_native(task) && names::prompt_id(task) == id))
}

/// Whether it came in as a prompt.
pub(crate) fn is_native(task: &Task) -> bool {
    task.origin.as_ref().is_some_and(|origin| origin.dialect == Dialect::Comfyui)
}
