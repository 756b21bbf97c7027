//! Waiting for the end of a task.

use std::time::Duration;

use remuda_core::Task;
use tokio::time::Instant;

use super::{ServiceError, ServiceResult};
use crate::changes::Follow;
use crate::state::AppState;

/// How often whoever waits looks for itself: not every database can tell what other processes do.
pub(crate) const POLL: Duration = Duration::from_secs(1);

/// Waits until the task has ended, the time is over, or the server stops; the task as it is then.
pub(crate) async fn for_end(
    state: &AppState,
    mut task: Task,
    mut follow: Follow,
    wait: Duration,
) -> ServiceResult<Task> {
    let deadline = Instant::now() + wait;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if task.status.is_terminal() || left.is_zero() || state.stop.is_cancelled() {
            return Ok(task);
        }
        task = for_news(state, task, &mut follow, left).await?;
    }
}

/// Waits until there may be news of the task, but not for long; the task as it is then.
pub(crate) async fn for_news(
    state: &AppState,
    task: Task,
    follow: &mut Follow,
    at_most: Duration,
) -> ServiceResult<Task> {
    let pause = POLL.min(at_most);
    let told = tokio::select! {
        told = follow.changed(pause) => told,
        () = state.stop.cancelled() => false,
    };
    let news = follow.known();
    if let Some(ended) = news.ended {
        return Ok((*ended).clone());
    }
    if told && news.is_known(task.version) {
        return Ok(task);
    }
    match state.store.task(task.id).await {
        Ok(Some(now)) => Ok(now),
        Ok(None) => Err(ServiceError::NoTask(task.id)),
        // The task is safe, and the caller waits for an answer that will come.
        Err(error) if error.is_temporary() => {
            tokio::time::sleep(pause).await;
            Ok(task)
        }
        Err(error) => Err(error.into()),
    }
}
