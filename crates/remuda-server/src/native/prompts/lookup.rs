//! From what a client calls a prompt to the task behind it.

use remuda_core::{Dialect, Task, TaskInput, Tenant};
use remuda_store::Lookup;

use crate::native::names;
use crate::service::{self, ServiceResult};
use crate::share::{Pass, Visit};
use crate::state::AppState;

/// The prompt that this tenant's clients call so. Another tenant's is not there, nor is a task that came in by another
/// door. Of a large one, without what it left.
pub(crate) async fn find(state: &AppState, tenant: &Tenant, id: &str) -> ServiceResult<Option<Task>> {
    let Some(lookup) = lookup(tenant, id, false) else { return Ok(None) };
    let found = service::look_up_briefly(state, &lookup).await?;
    Ok(found.filter(|task| is_called(task, id)))
}

/// All that is known of a prompt.
pub(super) struct Whole {
    pub(super) task: Task,
    pub(super) input: TaskInput,
    /// Room for it and for a text that is made of it, if it is large.
    pub(super) _room: Option<Pass>,
}

/// The same, with what it runs; together, unless it was forgotten. What is large is read when there is room for it.
pub(super) async fn find_whole(state: &AppState, tenant: &Tenant, id: &str) -> ServiceResult<Option<Whole>> {
    let Some(lookup) = lookup(tenant, id, true) else { return Ok(None) };
    let (found, room) = service::look_up_counted(state, &Visit::guest(), lookup).await?;
    let found = found.filter(|(task, _)| is_called(task, id));
    Ok(found.and_then(|(task, input)| Some(Whole { task, input: input?, _room: room })))
}

/// How a prompt is looked up. `None`: no prompt can be called so.
fn lookup(tenant: &Tenant, id: &str, input: bool) -> Option<Lookup> {
    let key = names::is_prompt_id(id).then(|| names::idempotency_key(id));
    let lookup = Lookup { tenant: tenant.clone(), key, id: id.parse().ok(), input };
    (lookup.key.is_some() || lookup.id.is_some()).then_some(lookup)
}

fn is_called(task: &Task, id: &str) -> bool {
    is_native(task) && names::prompt_id(task) == id
}

/// Whether it came in as a prompt.
pub(crate) fn is_native(task: &Task) -> bool {
    task.origin.as_ref().is_some_and(|origin| origin.dialect == Dialect::COMFYUI)
}
