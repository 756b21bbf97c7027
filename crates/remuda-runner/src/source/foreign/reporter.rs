//! Saying how a task ended, until it was heard.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::TaskId;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::deliveries::Settled;
use super::shared::Shared;
use super::{Delivery, Reported};
use crate::herd::jitter;
use crate::source::SourceError;

/// The first pause; it doubles.
pub(super) const PAUSE: Duration = Duration::from_millis(500);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// One try takes no longer than this, whatever the queue thinks.
pub(super) const LONGEST_TRY: Duration = Duration::from_secs(60);

/// Says it until it was heard, is too late, or the process ends. `tried` is told after the first try, which a report of a
/// process before this one has had.
pub(super) async fn run(shared: Arc<Shared>, task: TaskId, tried: Option<oneshot::Sender<()>>) {
    tokio::select! {
        biased;
        () = shared.stop.cancelled() => {}
        () = say(&shared, task, tried) => {}
    }
}

async fn say(shared: &Arc<Shared>, task: TaskId, mut tried: Option<oneshot::Sender<()>>) {
    let (mut pause, mut tries) = (PAUSE, 0_u32);
    let mut urged = shared.urge.subscribe();
    loop {
        urged.borrow_and_update();
        let Some((delivery, ending)) = shared.deliveries().unsent(task) else { return };
        // The first try waits for nobody.
        let turn = if tried.is_none() { shared.repeats.acquire().await.ok() } else { None };
        let answer = tokio::time::timeout(LONGEST_TRY, shared.queue.report(&delivery, &ending)).await;
        drop(turn);
        let why = match answer {
            Ok(Ok(reported)) => {
                if reported == Reported::TooLate {
                    tracing::info!(key = delivery.key, attempt = delivery.attempt, "its end came too late");
                } else if tried.is_none() {
                    tracing::info!(
                        key = delivery.key,
                        attempt = delivery.attempt,
                        "its end was heard at last"
                    );
                }
                if settle(shared, task, &delivery) {
                    return;
                }
                continue;
            }
            Ok(Err(SourceError::Unavailable(why))) => why,
            Ok(Err(error @ (SourceError::Refused(_) | SourceError::Fenced))) => {
                tracing::error!(key = delivery.key, attempt = delivery.attempt, %error, "its report was refused; it is not sent again");
                if settle(shared, task, &delivery) {
                    return;
                }
                continue;
            }
            Err(_) => format!("no answer within {} s", LONGEST_TRY.as_secs()),
        };
        let first = tried.take();
        if first.is_some() {
            keep(shared, task).await;
        }
        tries = tries.saturating_add(1);
        tell_unheard(&delivery, tries, &why);
        // Who waited may have gone.
        let _ = first.map(|tried| tried.send(()));
        tokio::select! {
            () = tokio::time::sleep(jitter(pause)) => {}
            _ = urged.changed() => {}
            () = shared.queue.back() => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Says that a report was not heard: the first time, and then less and less often.
pub(super) fn tell_unheard(delivery: &Delivery, tries: u32, why: &str) {
    let (key, attempt) = (&delivery.key, delivery.attempt);
    if tries.is_power_of_two() {
        tracing::warn!(
            key,
            attempt,
            tries,
            why,
            "the report of its end did not arrive; it is kept and sent again"
        );
    } else {
        tracing::debug!(key, attempt, tries, why, "how it ended was not heard");
    }
}

/// Whether everything is said.
fn settle(shared: &Arc<Shared>, task: TaskId, delivery: &Delivery) -> bool {
    let settled = shared.deliveries().settle(task, delivery.attempt, Instant::now());
    if settled == Settled::Gone {
        shared.forget(task, Some(delivery));
    }
    settled != Settled::Newer
}

/// Writes an end that was not heard so that it survives everything.
pub(super) async fn keep(shared: &Arc<Shared>, task: TaskId) {
    let writer = Arc::clone(shared);
    let write = move || writer.journal.save(task, true, || writer.deliveries().record(task));
    match tokio::task::spawn_blocking(write).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%task, %error, "its end cannot be written to the journal"),
        // Only a runtime that ends cancels such work.
        Err(error) => tracing::error!(%task, %error, "its end cannot be written to the journal"),
    }
}
