//! What clients and lanes know of each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What clients and lanes know of each other.
#[derive(Debug)]
pub(crate) struct Stage {
    /// No further fault begins.
    pub(crate) calm: CancellationToken,
    /// Nobody waits for a task any longer.
    pub(crate) give_up: CancellationToken,
    /// While it is set no fault begins except the one that set it.
    hush: watch::Sender<bool>,
    accepted: watch::Sender<usize>,
    ended: AtomicUsize,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        Stage {
            calm: CancellationToken::new(),
            give_up: CancellationToken::new(),
            hush: watch::Sender::new(false),
            accepted: watch::Sender::new(0),
            ended: AtomicUsize::new(0),
        }
    }

    pub(crate) fn one_accepted(&self) {
        self.accepted.send_modify(|count| *count += 1);
    }

    pub(crate) fn one_ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }

    /// Waits until this many tasks were taken in; `false` if the trouble is over first.
    pub(crate) async fn accepted(&self, count: usize) -> bool {
        let mut accepted = self.accepted.subscribe();
        let reached = accepted.wait_for(|now| *now >= count);
        self.calm.run_until_cancelled(reached).await.is_some()
    }

    pub(crate) fn hush(&self, quiet: bool) {
        self.hush.send_replace(quiet);
    }

    /// Waits for the next fault's moment; `false` if the trouble is over.
    pub(crate) async fn moment(&self, pause: Duration) -> bool {
        let mut hush = self.hush.subscribe();
        let moment = async {
            tokio::time::sleep(pause).await;
            // An error would mean that the stage is gone, which holds this.
            let _ = hush.wait_for(|quiet| !*quiet).await;
        };
        self.calm.run_until_cancelled(moment).await.is_some()
    }
}
