//! Prompts of ours that nobody answers for any more are stopped, and counted.

use std::collections::HashSet;
use std::sync::Arc;

use comfyui::{Client, OldInterrupt, PromptId, Queue, QueueItem};
use remuda_core::{Lease, LeaseRef};

use super::event::Unwell;
use super::worker::{Ready, Worker};
use crate::decide::marker::Marker;

/// What a sweep found.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// Prompts of ours without a lease that are still in the queue.
    pub(crate) late: usize,
    /// Prompts that were stopped; the first time each is seen it is counted.
    pub(crate) stopped: Vec<PromptId>,
    /// The prompt that showed the worker to be dead, if it is not there any more. One that was told of while the sweep was
    /// under way was not looked for.
    pub(crate) vanished: Option<PromptId>,
    /// Leases of this process on this worker that it knows nothing of: claims whose answer was lost.
    pub(crate) strays: Vec<LeaseRef>,
    /// Others hold leases on this worker: they run out, and are this process's to adopt then.
    pub(crate) foreign: bool,
}

/// Compares ComfyUI's queue with the leases on the worker.
pub(super) async fn sweep(
    worker: Arc<Worker>,
    ready: Arc<Ready>,
    tombstone: Option<PromptId>,
    counted: HashSet<PromptId>,
) -> Result<Swept, Unwell> {
    let client = ready.session.client();
    // The queue first: what is in it has had a lease since before it was sent, so one that is missing later is gone.
    let queue = client.queue().await.map_err(|error| Unwell::from(&error))?;
    let leases = worker.shared.source.leases(&worker.spec.id);
    let leases = worker.shared.ask(leases).await.map_err(|error| error.to_string())?;
    let board = &worker.shared.board;
    let held: HashSet<LeaseRef> = board.leases_on(&worker.spec.id).into_iter().collect();
    let mut swept = Swept::default();
    let owner = worker.shared.options.owner;
    let strays = leases.iter().filter(|lease| lease.owner == owner && !held.contains(&lease.reference()));
    swept.strays = strays.map(Lease::reference).collect();
    swept.foreign = leases.iter().any(|lease| lease.owner != owner);

    let all = || queue.running.iter().chain(&queue.pending);
    swept.vanished = tombstone.clone().filter(|tombstone| !all().any(|item| item.prompt_id == *tombstone));
    let late = all().filter(|item| is_late(item, &worker, &ready, &leases, &held));
    let late: HashSet<PromptId> = late.map(|item| item.prompt_id.clone()).collect();
    let doubled = doubled(&queue, &worker, &ready);
    if late.is_empty() && doubled.is_empty() {
        return Ok(swept);
    }
    // Only the holder of the worker may stop what is nobody's.
    if !board.worker_is_sure(&worker.spec.id) {
        return Err("the worker may be somebody else's by now".to_owned().into());
    }
    for id in doubled {
        tracing::warn!(worker = %worker.spec.id, prompt_id = %id, "a prompt is in the queue twice; taking one out");
        worker.shared.counters.late_prompts_stopped.one();
        client.delete_pending(&[id]).await.map_err(|error| Unwell::from(&error))?;
    }
    // One that ended between the two questions is over, not late: only what is still there is. And what came after the
    // first look may have a lease that is newer than our list.
    let queue = client.queue().await.map_err(|error| Unwell::from(&error))?;
    let running = queue.running.iter().map(|item| (item, true));
    for (item, running) in running.chain(queue.pending.iter().map(|item| (item, false))) {
        if !late.contains(&item.prompt_id) {
            continue;
        }
        let is_tombstone = tombstone.as_ref() == Some(&item.prompt_id);
        // A dead worker never runs what waits; the prompt that waits there shows when it was restarted.
        if is_tombstone && !running {
            continue;
        }
        if !counted.contains(&item.prompt_id) {
            tracing::warn!(worker = %worker.spec.id, prompt_id = %item.prompt_id, running, "stopping a prompt that nobody answers for");
            worker.shared.counters.late_prompts_stopped.one();
            if running {
                worker.shared.counters.repeats.one();
            }
        }
        swept.stopped.push(item.prompt_id.clone());
        if !stop(client, &worker, &item.prompt_id).await {
            swept.late += 1;
        }
    }
    Ok(swept)
}

fn is_late(
    item: &QueueItem,
    worker: &Worker,
    ready: &Ready,
    leases: &[Lease],
    held: &HashSet<LeaseRef>,
) -> bool {
    let Some(marker) = Marker::on(item) else { return false };
    if !marker.is_of(ready.installation, &worker.spec.id) {
        return false;
    }
    let leased = |lease: &&Lease| lease.task == marker.task && lease.attempt == marker.attempt;
    // Also while the store lags behind: what this process holds is leased.
    let ours = held.iter().any(|lease| lease.task == marker.task && lease.fence.0 == marker.fence);
    !leases.iter().any(|lease| leased(&lease)) && !ours
}

/// Prompts of ours that wait while another one with the same id is there: the late submission of an owner that was frozen,
/// beside the one of its successor. ComfyUI takes out one of the two.
fn doubled(queue: &Queue, worker: &Worker, ready: &Ready) -> Vec<PromptId> {
    let ours = |item: &&QueueItem| {
        Marker::on(item).is_some_and(|marker| marker.is_of(ready.installation, &worker.spec.id))
    };
    let mut seen: HashSet<&PromptId> = queue.running.iter().map(|item| &item.prompt_id).collect();
    let waiting = queue.pending.iter().filter(ours).map(|item| &item.prompt_id);
    waiting.filter(|id| !seen.insert(id)).cloned().collect()
}

async fn stop(client: &Client, worker: &Worker, prompt: &PromptId) -> bool {
    let bound = worker.shared.options.timing.stopping;
    match client.cancel_with(prompt, bound, OldInterrupt::WhenAlone).await {
        Ok(comfyui::Cancelled::StillRunning) | Err(_) => false,
        Ok(_) => {
            // Its entry, if it left one, is nobody's.
            if let Err(error) = client.delete_history(std::slice::from_ref(prompt)).await {
                tracing::debug!(%error, prompt_id = %prompt, "its history entry stays");
            }
            true
        }
    }
}
