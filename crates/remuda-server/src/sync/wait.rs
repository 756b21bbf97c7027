//! Waiting for the end of a prompt, and what ends the waiting before.

use std::time::Duration;

use remuda_core::{Status, TaskId};
use remuda_store::Glance;
use tokio::time::Instant;

use crate::changes::Follow;
use crate::service::{self, ServiceResult, for_news, last_look};
use crate::state::AppState;

/// How much longer a prompt that was lost with its worker waits for one: ComfyUIs are often started again.
const RESTART: u32 = 6;

/// How often it is looked whether there are workers, while a prompt waits for one. All who wait share the look.
const TICK: Duration = Duration::from_secs(1);

/// How the waiting ended.
#[derive(Debug)]
pub(super) enum Waited {
    /// The prompt has ended.
    Ended(Glance),
    /// The time is over.
    TimeOver(Glance),
    /// No worker is usable, and none may be in a moment.
    NobodyThere(Glance),
    /// This server stops.
    Stopping(Glance),
}

/// Waits until the task has ended, or the waiting is over. Without `patience` a lack of workers does not matter.
pub(super) async fn for_end(
    state: &AppState,
    mut seen: Glance,
    follow: &mut Follow,
    until: Instant,
    patience: Option<Duration>,
) -> ServiceResult<Waited> {
    let mut alone: Option<Instant> = None;
    loop {
        if seen.task.status.is_terminal() {
            return Ok(Waited::Ended(seen));
        }
        if state.stop.is_cancelled() {
            return Ok(Waited::Stopping(seen));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let seen = last_look(state, seen).await?;
            if seen.task.status.is_terminal() {
                return Ok(Waited::Ended(seen));
            }
            // Why it was not done: there is nobody who could.
            let alone = patience.is_some()
                && seen.task.status == Status::Pending
                && matches!(state.lookout.has_hope(&*state.store).await, Ok(false));
            return Ok(if alone { Waited::NobodyThere(seen) } else { Waited::TimeOver(seen) });
        }
        if let Some(patience) = patience {
            let patience = if seen.task.losses > 0 { patience * RESTART } else { patience };
            let waits = seen.task.status == Status::Pending;
            // A store that does not answer says nothing about workers.
            if waits && matches!(state.lookout.has_hope(&*state.store).await, Ok(false)) {
                if alone.get_or_insert_with(Instant::now).elapsed() >= patience {
                    return Ok(Waited::NobodyThere(seen));
                }
            } else {
                alone = None;
            }
        }
        let at_most = if patience.is_some() { left.min(TICK) } else { left };
        seen = for_news(state, seen, follow, at_most).await?;
    }
}

/// Cancels the task, and waits a moment until that is confirmed; the task as it is then. It may have ended well in
/// between.
pub(super) async fn cancel(state: &AppState, id: TaskId, follow: &mut Follow) -> ServiceResult<Glance> {
    let seen = match service::stop(state, id).await? {
        Some(seen) => seen,
        None => service::seen(state, id).await?,
    };
    let until = Instant::now() + state.sync.confirmation;
    match for_end(state, seen, follow, until, None).await? {
        Waited::Ended(seen) | Waited::TimeOver(seen) | Waited::NobodyThere(seen) | Waited::Stopping(seen) => {
            Ok(seen)
        }
    }
}
