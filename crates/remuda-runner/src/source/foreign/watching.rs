//! Listening to what the queue says of a task under way.

use std::sync::Arc;

use remuda_core::{TaskId, Timestamp};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::deliveries::Verdict;
use super::shared::{Shared, bump};
use super::{Delivery, NextDelivery, Withdrawn};

/// Listens until the task ends, or until somebody else does. One whose time was over, and that has ended well since, is
/// listened for until its next delivery comes: that may have been lost on its way.
pub(super) async fn run(shared: Arc<Shared>, task: TaskId, stop: CancellationToken) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = listen(&shared, task) => shared.stop_watching(task),
    }
}

async fn listen(shared: &Arc<Shared>, task: TaskId) {
    // The delivery that is over, and has another one to come.
    let mut superseded: Option<Arc<Delivery>> = None;
    loop {
        let known = shared.deliveries().delivery(task);
        let delivery = match (known, superseded.take()) {
            (Some(delivery), before) => {
                superseded = before.filter(|before| before.attempt == delivery.attempt);
                delivery
            }
            (None, Some(before)) if shared.deliveries().remembers(task, Instant::now()) => {
                superseded = Some(Arc::clone(&before));
                before
            }
            (None, before) => {
                before.iter().for_each(|delivery| shared.queue.gone(delivery));
                return;
            }
        };
        let (key, attempt) = (&delivery.key, delivery.attempt);
        let over = match &superseded {
            None => shared.queue.watch(&delivery).await,
            Some(delivery) => match shared.queue.watch_next(delivery).await {
                NextDelivery::Withdrawn(over) => over,
                NextDelivery::Lost(next) => {
                    tracing::warn!(
                        key,
                        attempt = next.attempt,
                        "its next delivery was lost on its way; it is taken up as if it had come"
                    );
                    shared.receive(*next);
                    return;
                }
            },
        };
        let verdict = shared.deliveries().withdraw(task, attempt, &over, Timestamp::now());
        match (verdict, &over) {
            (Verdict::Freed, _) => {
                if superseded.is_none() {
                    tracing::warn!(
                        key,
                        attempt,
                        "its time is over, and it will be delivered again: the render goes on for that"
                    );
                    bump(&shared.moves);
                }
                superseded = Some(delivery);
            }
            // It has ended meanwhile.
            (Verdict::Ignore, Withdrawn::Superseded) if superseded.is_some() => {}
            (Verdict::Ignore, _) => {
                superseded.iter().for_each(|delivery| shared.queue.gone(delivery));
                return;
            }
            (Verdict::Tell, Withdrawn::Unwanted(reason) | Withdrawn::Done(reason)) => {
                tracing::info!(key, attempt, reason, "nobody wants it any more: its prompt is cancelled");
                bump(&shared.news);
                return;
            }
            (Verdict::Tell | Verdict::Gone, _) => {
                tracing::info!(key, attempt, ?over, "it is let go of");
                // Before its file goes: whoever is started next must not stop it either.
                if over == Withdrawn::Elsewhere {
                    shared.let_go(task);
                }
                shared.forget(task, Some(&delivery));
                bump(&shared.news);
                return;
            }
        }
    }
}
