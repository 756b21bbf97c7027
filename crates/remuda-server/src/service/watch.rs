//! Waiting for the end of a task.
//!
//! Nobody who waits looks for itself: what happens is pushed, and what is not pushed is found by the one look of `crate::feed`.

use std::time::Duration;

use remuda_core::TaskId;
use remuda_store::Glance;
use tokio::time::Instant;

use super::{ServiceError, ServiceResult};
use crate::changes::Follow;
use crate::state::AppState;

/// The pause before a store that did not answer is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits until the task has ended, the time is over, or the server stops; the task as it is then.
pub(crate) async fn for_end(
    state: &AppState,
    mut seen: Glance,
    mut follow: Follow,
    wait: Duration,
) -> ServiceResult<Glance> {
    let deadline = Instant::now() + wait;
    loop {
        if seen.task.status.is_terminal() || state.stop.is_cancelled() {
            return Ok(seen);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return if wait.is_zero() { Ok(seen) } else { last_look(state, seen).await };
        }
        seen = for_news(state, seen, &mut follow, left).await?;
    }
}

/// Waits until there is news of the task, but not longer than `at_most`; the task as it is then.
pub(crate) async fn for_news(
    state: &AppState,
    seen: Glance,
    follow: &mut Follow,
    at_most: Duration,
) -> ServiceResult<Glance> {
    let told = tokio::select! {
        told = follow.changed(at_most) => told,
        () = state.stop.cancelled() => false,
    };
    let news = follow.known();
    if let Some(ended) = news.ended {
        return Ok(Glance::of((*ended).clone()));
    }
    if !told || news.is_known(seen.task.version) {
        return Ok(seen);
    }
    match look(state, seen.task.id).await {
        Ok(now) => Ok(now),
        // The task is safe, and the caller waits for an answer that will come.
        Err(ServiceError::Store(error)) if error.is_temporary() => {
            follow.again();
            tokio::time::sleep(PAUSE.min(at_most)).await;
            Ok(seen)
        }
        Err(error) => Err(error),
    }
}

/// The task at the end of the waiting: something may have happened to it a moment ago.
pub(crate) async fn last_look(state: &AppState, seen: Glance) -> ServiceResult<Glance> {
    match look(state, seen.task.id).await {
        Err(ServiceError::Store(error)) if error.is_temporary() => Ok(seen),
        answer => answer,
    }
}

/// The task as it is now. Whoever waits keeps nothing of it that is long: thousands may wait for one task.
pub(super) async fn look(state: &AppState, id: TaskId) -> ServiceResult<Glance> {
    state.store.glance(id).await?.ok_or(ServiceError::NoTask(id))
}
