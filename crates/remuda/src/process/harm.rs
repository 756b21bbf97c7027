//! Telling a store what its tasks did to this process.

use anyhow::Context as _;
use remuda_core::{Harm, HarmKind, OwnerId, TaskId, Timestamp};
use remuda_pool::{HarmBook, Incident, IncidentKind};
use remuda_store::RunnerStore;

/// Tells everything, and forgets what was heard.
pub(super) async fn tell(book: &HarmBook, store: &dyn RunnerStore, owner: OwnerId) -> anyhow::Result<()> {
    for incident in book.all() {
        let (task, work) = (TaskId(incident.task), incident.what.clone());
        let harmed = store.note_harm(task, None, harm(&incident, owner)).await;
        let harmed = harmed.context("the store cannot be told which task brought this process down")?;
        book.forget(|known| *known == incident)?;
        if harmed.set_aside {
            tracing::error!(%task, work, count = harmed.count, "a task was set aside: work on its graph brought Remuda down");
        } else {
            tracing::warn!(%task, work, count = harmed.count, "the process died while it worked on the graph of a task");
        }
    }
    Ok(())
}

fn harm(incident: &Incident, owner: OwnerId) -> Harm {
    let kind = match incident.kind {
        IncidentKind::Death => HarmKind::Death,
        IncidentKind::Stall => HarmKind::Stall,
    };
    let at = Timestamp::from_microsecond(incident.at_us).unwrap_or(Timestamp::UNIX_EPOCH);
    Harm { kind, work: incident.what.clone(), process: owner.to_string(), at }
}
