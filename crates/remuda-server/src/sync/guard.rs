//! Nobody waits any more: the prompt is cancelled, whichever way the waiting ended.

use std::time::Duration;

use remuda_core::TaskId;
use tokio::time::sleep;

use crate::service::{self, ServiceError};
use crate::state::AppState;

/// The pause before the next try.
const PAUSE: Duration = Duration::from_millis(500);

/// How often a submission that was cut off is looked for: it may still arrive at the store.
const LOOKS: u32 = 6;

/// How often a store that is away is tried again. What is not cancelled by then ends by its deadline.
const TRIES: u32 = 240;

/// Cancels a task when it is dropped, unless it was told otherwise. Made before the submission, so that there is no
/// moment at which a client can hang up unnoticed.
#[derive(Debug)]
pub(super) struct Guard {
    state: AppState,
    task: TaskId,
    armed: bool,
}

impl Guard {
    pub(super) fn new(state: &AppState, task: TaskId, armed: bool) -> Self {
        Self { state: state.clone(), task, armed }
    }

    /// The task has ended, or goes on without anybody.
    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        // A client may hang up thousands of times a second, and the record of the task says it as well.
        tracing::debug!(task = %self.task, "nobody waits for the prompt any more: it is cancelled");
        self.state.tasks.spawn(cancel(self.state.clone(), self.task));
    }
}

async fn cancel(state: AppState, task: TaskId) {
    let mut looks = 0;
    for _ in 0..TRIES {
        match service::stop(&state, task).await {
            Ok(_) => return,
            Err(ServiceError::NoTask(_)) if looks < LOOKS => looks += 1,
            Err(ServiceError::NoTask(_)) => return,
            Err(error) if error.is_temporary() => {}
            Err(error) => {
                tracing::warn!(%task, %error, "a prompt that nobody waits for could not be cancelled");
                return;
            }
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = state.stop.cancelled() => return,
        }
    }
    tracing::warn!(%task, "the store was away: a prompt that nobody waits for ends by its deadline");
}
