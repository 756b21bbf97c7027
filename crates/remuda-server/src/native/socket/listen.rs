//! Hearing what ComfyUI says of a task, wherever it runs.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use remuda_core::{AttemptNo, TaskId};
use remuda_frames::{Frame, Messages};

use crate::state::AppState;

/// Everything that ComfyUI says of a task, from the beginning of the attempt.
pub(super) struct Listener {
    frames: Pin<Box<dyn Stream<Item = Arc<Frame>> + Send>>,
}

/// Where a task runs.
pub(super) struct Found {
    pub(super) listener: Listener,
    pub(super) attempt: AttemptNo,
    /// What it is called at ComfyUI.
    pub(super) prompt: String,
    /// In this process, or reported to it.
    pub(super) here: bool,
}

impl Listener {
    /// Finds out where a task runs, if it does. `early`: who listens here already.
    pub(super) async fn find(
        state: &AppState,
        task: TaskId,
        early: Self,
    ) -> remuda_store::Result<Option<Found>> {
        let Some(lease) = state.store.lease(task).await? else { return Ok(None) };
        let attempt = lease.attempt;
        let (listener, here) = match &lease.gateway {
            // Frames of a task whose gateway is gone stay at the one that got them.
            Some(gateway) if !state.is_here(Some(gateway)) && !state.hub.has_messages(task, attempt) => {
                (Self::of(state.relays.follow_messages(state, task, attempt, gateway)), false)
            }
            _ => (early, true),
        };
        Ok(Some(Found { listener, here, attempt, prompt: lease.prompt_id.to_string() }))
    }

    /// What is said here.
    pub(super) fn here(state: &AppState, task: TaskId, attempt: AttemptNo) -> Self {
        Self::of(state.hub.follow_messages(task, attempt))
    }

    /// What was said here of a task that ended a moment ago.
    pub(super) fn afterwards(state: &AppState, task: TaskId, attempt: AttemptNo) -> Option<Self> {
        let said = state.hub.has_messages(task, attempt);
        said.then(|| Self::here(state, task, attempt))
    }

    pub(super) fn of(messages: Messages) -> Self {
        let frames = stream::unfold(messages, |mut messages| async move {
            let frame = messages.recv().await?;
            Some((frame, messages))
        });
        Self { frames: Box::pin(frames.fuse()) }
    }

    /// The next frame; `None` when there will be none.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arc<Frame>>> {
        self.frames.poll_next_unpin(cx)
    }

    /// What is there already.
    pub(super) fn ready(&mut self) -> Option<Arc<Frame>> {
        self.frames.next().now_or_never().flatten()
    }
}
