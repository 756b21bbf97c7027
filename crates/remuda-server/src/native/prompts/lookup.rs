//! From what a client calls a prompt to the task behind it.

use remuda_core::{Dialect, Task, TaskId, Tenant};

use crate::native::names;
use crate::state::AppState;

/// The prompt that this tenant's clients call so. Another tenant's is not there, nor is a task that came in by another
/// door.
pub(crate) async fn find(state: &AppState, tenant: &Tenant, id: &str) -> remuda_store::Result<Option<Task>> {
    let chosen = match names::is_prompt_id(id) {
        true => state.store.submitted(tenant, &names::idempotency_key(id)).await?,
        false => None,
    };
    let task = match (chosen, id.parse::<TaskId>()) {
        (Some((_, task)), _) | (None, Ok(task)) => state.store.task(task).await?,
        (None, Err(_)) => None,
    };
    Ok(task.filter(|task| is_native(task) && task.tenant == *tenant && names::prompt_id(task) == id))
}

/// Whether it came in as a prompt.
pub(crate) fn is_native(task: &Task) -> bool {
    task.origin.as_ref().is_some_and(|origin| origin.dialect == Dialect::Comfyui)
}
