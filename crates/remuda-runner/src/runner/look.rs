//! Questions about one prompt of ours.

use comfyui::{Client, PromptId, QueueItem, Result, Whereabouts};

use crate::decide::marker::Marker;

/// The id under which ComfyUI has the prompt of this attempt, wherever it is; `None` when it surely has none.
///
/// Versions that choose ids themselves are asked by our mark.
pub(super) async fn locate(client: &Client, id: &PromptId, marker: &Marker) -> Result<Option<PromptId>> {
    if client.capabilities().await?.own_prompt_id {
        let place = client.find(id).await?;
        return Ok((!matches!(place, Whereabouts::Absent)).then(|| id.clone()));
    }
    let ours = |item: &QueueItem| Marker::on(item).is_some_and(|found| found.same_attempt(marker));
    // Queue first: a prompt moves from there to the history and never back.
    let queue = client.queue().await?;
    if let Some(item) = queue.running.iter().chain(&queue.pending).find(|item| ours(item)) {
        return Ok(Some(item.prompt_id.clone()));
    }
    // It is probably a new one; the whole history can be large.
    for newest in [Some(64), None] {
        let history = client.history_page(newest, None).await?;
        if let Some((id, _)) = history.into_iter().find(|(_, entry)| ours(&entry.prompt)) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Where a prompt that was taken out of the queue is by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterRemoval {
    /// Neither in the queue nor, asked after that, in the history.
    Gone,
    /// Still waiting.
    Waiting,
    /// It began before it could be taken out.
    Began,
}

/// Looks at the queue, then at the history.
pub(super) async fn after_removal(client: &Client, id: &PromptId) -> Result<AfterRemoval> {
    let queue = client.queue().await?;
    if queue.running.iter().any(|item| item.prompt_id == *id) {
        return Ok(AfterRemoval::Began);
    }
    if queue.pending.iter().any(|item| item.prompt_id == *id) {
        return Ok(AfterRemoval::Waiting);
    }
    Ok(if client.history(id).await?.is_some() { AfterRemoval::Began } else { AfterRemoval::Gone })
}
