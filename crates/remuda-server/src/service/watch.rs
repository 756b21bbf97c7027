//! Waiting for the end of a task.
//!
//! Nobody who waits looks for itself: what happens is pushed, and what is not pushed is found by the one look of `crate::feed`.

use std::time::Duration;

use remuda_core::Task;
use tokio::time::Instant;

use super::{ServiceError, ServiceResult};
use crate::changes::Follow;
use crate::state::AppState;

/// The pause before a store that did not answer is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits until the task has ended, the time is over, or the server stops; the task as it is then.
pub(crate) async fn for_end(
    state: &AppState,
    mut task: Task,
    mut follow: Follow,
    wait: Duration,
) -> ServiceResult<Task> {
    let deadline = Instant::now() + wait;
    loop {
        if task.status.is_terminal() || state.stop.is_cancelled() {
            return Ok(task);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return if wait.is_zero() { Ok(task) } else { last_look(state, task).await };
        }
        task = for_news(state, task, &mut follow, left).await?;
    }
}

/// Waits until there is news of the task, but not longer than `at_most`; the task as it is then.
pub(crate) async fn for_news(
    state: &AppState,
    task: Task,
    follow: &mut Follow,
    at_most: Duration,
) -> ServiceResult<Task> {
    let told = tokio::select! {
        told = follow.changed(at_most) => told,
        () = state.stop.cancelled() => false,
    };
    let news = follow.known();
    if let Some(ended) = news.ended {
        return Ok((*ended).clone());
    }
    if !told || news.is_known(task.version) {
        return Ok(task);
    }
    match state.store.task(task.id).await {
        Ok(Some(now)) => Ok(now),
        Ok(None) => Err(ServiceError::NoTask(task.id)),
        // The task is safe, and the caller waits for an answer that will come.
        Err(error) if error.is_temporary() => {
            follow.again();
            tokio::time::sleep(PAUSE.min(at_most)).await;
            Ok(task)
        }
        Err(error) => Err(error.into()),
    }
}

/// The task at the end of the waiting: something may have happened to it a moment ago.
pub(crate) async fn last_look(state: &AppState, task: Task) -> ServiceResult<Task> {
    match state.store.task(task.id).await {
        Ok(Some(now)) => Ok(now),
        Ok(None) => Err(ServiceError::NoTask(task.id)),
        Err(error) if error.is_temporary() => Ok(task),
        Err(error) => Err(error.into()),
    }
}
