//! Looking for a task that may have been begun before: it is never sent while it may be somewhere already.

use std::sync::Arc;
use std::time::Duration;

use comfyui::{Client, Outcome, PromptId, QueueItem, Whereabouts};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use remuda_core::{AttemptNo, Lease, Phase, TaskId, Timestamp, WorkerId};
use tokio::time::Instant;
use uuid::Uuid;

use super::Delivery;
use super::deliveries::{Found, marked};
use super::shared::{Shared, bump};
use crate::decide::marker::Marker;
use crate::herd::jitter;

/// How long a ComfyUI that cannot be asked is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// One question takes no longer than this.
const QUESTION: Duration = Duration::from_secs(10);

/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(500);

/// The pause between two looks at a render that was let go of.
const LINGER: Duration = Duration::from_secs(2);

/// What one ComfyUI knows of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waits,
    Runs,
    EndedWell,
    EndedBadly,
    Absent,
}

/// Looks for a task, and says so there.
pub(super) async fn run(shared: Arc<Shared>, task: TaskId) {
    let Some(delivery) = shared.deliveries().delivery(task) else { return };
    let found = tokio::select! {
        biased;
        () = shared.stop.cancelled() => return,
        found = search_all(&shared, task, &delivery) => found,
    };
    tracing::info!(key = delivery.key, attempt = delivery.attempt, prompt_id = %delivery.prompt(), ?found, "looked for a task that may have been begun before");
    if shared.deliveries().located(task, found, Instant::now()) {
        shared.note(task);
        bump(&shared.moves);
    }
}

/// Looks at a render that was let go of until it has ended: then its worker is free again.
pub(super) async fn linger(shared: Arc<Shared>, lease: Lease) {
    let ended = async {
        let client = shared.workers.iter().find(|(worker, _)| *worker == lease.worker);
        let mut absent = 0;
        while let Some((_, client)) = client
            && Timestamp::now() < lease.until
        {
            tokio::time::sleep(jitter(LINGER)).await;
            let id = PromptId::from(lease.prompt_id);
            let place = place_of(client, &id, lease.task, shared.installation);
            match tokio::time::timeout(QUESTION, place).await {
                Ok(Ok((Place::EndedWell | Place::EndedBadly, _))) => break,
                // Seen once, it may be on its way.
                Ok(Ok((Place::Absent, _))) if absent > 0 => break,
                Ok(Ok((Place::Absent, _))) => absent += 1,
                _ => absent = 0,
            }
        }
    };
    tokio::select! {
        biased;
        () = shared.stop.cancelled() => return,
        () = ended => {}
    }
    tracing::info!(worker = %lease.worker, prompt_id = %lease.prompt_id, "a render that was let go of or spared has ended");
    shared.deliveries().release(&lease);
    shared.keep_let_go();
    bump(&shared.moves);
}

/// Looks for all ids that it may have.
async fn search_all(shared: &Shared, task: TaskId, delivery: &Delivery) -> Found {
    let mut found = search(shared, task, delivery.prompt()).await;
    for (delivery, id) in delivery.earlier.iter().rev().filter(|(_, id)| *id != delivery.prompt()) {
        if matches!(found, Found::At { .. }) {
            break;
        }
        match search(shared, task, *id).await {
            Found::At { worker, phase, attempt, prompt } => {
                let attempt = attempt.or(Some(marked(*delivery)));
                found = Found::At { worker, phase, attempt, prompt };
            }
            Found::Bad => found = Found::Bad,
            Found::Nowhere => {}
        }
    }
    found
}

/// Asks all workers at once. The first that has it, or had it with a good end, decides.
async fn search(shared: &Shared, task: TaskId, prompt: Uuid) -> Found {
    let id = PromptId::from(prompt);
    let ask = |(worker, client)| ask(worker, client, &id, task, shared.installation);
    let mut answers: FuturesUnordered<_> =
        shared.workers.iter().map(|(worker, client)| ask((worker, client))).collect();
    let mut found = Found::Nowhere;
    while let Some((worker, place, attempt)) = answers.next().await {
        let phase = match place {
            Place::Waits => Phase::Submitted,
            Place::Runs | Place::EndedWell => Phase::Rendering,
            Place::EndedBadly => {
                found = Found::Bad;
                continue;
            }
            Place::Absent => continue,
        };
        return Found::At { worker: worker.clone(), phase, attempt, prompt };
    }
    found
}

/// Asks one worker, until it answers or has not answered for too long.
async fn ask<'a>(
    worker: &'a WorkerId,
    client: &'a Client,
    id: &PromptId,
    task: TaskId,
    installation: Uuid,
) -> (&'a WorkerId, Place, Option<AttemptNo>) {
    let since = Instant::now();
    loop {
        let why = match tokio::time::timeout(QUESTION, place_of(client, id, task, installation)).await {
            Ok(Ok((place, attempt))) => return (worker, place, attempt),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", QUESTION.as_secs()),
        };
        if since.elapsed() >= PATIENCE {
            tracing::warn!(%worker, prompt_id = %id, why, "a ComfyUI could not be asked for a task that may run there; it counts as not there");
            return (worker, Place::Absent, None);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn place_of(
    client: &Client,
    id: &PromptId,
    task: TaskId,
    installation: Uuid,
) -> comfyui::Result<(Place, Option<AttemptNo>)> {
    if client.capabilities().await?.own_prompt_id {
        let place = match client.find(id).await? {
            Whereabouts::Pending => Place::Waits,
            Whereabouts::Running => Place::Runs,
            Whereabouts::Ended(entry) => judge(*entry),
            Whereabouts::Absent => Place::Absent,
        };
        return Ok((place, None));
    }
    // Versions that choose ids themselves are asked by our mark, which only prompts of this installation have.
    let ours = |item: &QueueItem| {
        let marker = Marker::on(item)?;
        (marker.installation == installation && marker.task == task).then_some(marker.attempt)
    };
    // Queue first: a prompt moves from there to the history and never back.
    let queue = client.queue().await?;
    if let Some(attempt) = queue.running.iter().find_map(ours) {
        return Ok((Place::Runs, Some(attempt)));
    }
    if let Some(attempt) = queue.pending.iter().find_map(ours) {
        return Ok((Place::Waits, Some(attempt)));
    }
    let history = client.history_page(None, None).await?;
    let ended = history.into_iter().filter_map(|(_, entry)| Some((ours(&entry.prompt)?, judge(entry))));
    let last = ended.max_by_key(|(attempt, place)| (*place == Place::EndedWell, *attempt));
    Ok(last.map_or((Place::Absent, None), |(attempt, place)| (place, Some(attempt))))
}

fn judge(entry: comfyui::HistoryEntry) -> Place {
    // Whether its results can be taken is found when they are fetched.
    match Outcome::judge_within(entry, &comfyui::outputs::Limits::default()) {
        Outcome::Succeeded(_) | Outcome::TooMany(_) | Outcome::TooLarge { .. } => Place::EndedWell,
        _ => Place::EndedBadly,
    }
}
