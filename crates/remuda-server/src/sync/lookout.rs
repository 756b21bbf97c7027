//! Whether anybody could run anything.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use remuda_core::{Health, Worker};
use remuda_store::{Result, WorkerStore};

use crate::wire::status_of;

/// For so long an answer is believed: many may wait at once.
const FRESH: Duration = Duration::from_millis(500);

/// What is known of the workers as a whole.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    seen: Mutex<Option<(Instant, bool)>>,
}

impl Lookout {
    /// Whether a worker gets tasks, or may do so in a moment.
    pub(super) async fn has_hope(&self, store: &dyn WorkerStore) -> Result<bool> {
        {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((when, hope)) = *seen
                && when.elapsed() < FRESH
            {
                return Ok(hope);
            }
        }
        let when = Instant::now();
        let now = Timestamp::now();
        let hope = store.workers().await?.iter().any(|worker| hopeful(worker, now));
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some((when, hope));
        Ok(hope)
    }
}

fn hopeful(worker: &Worker, now: Timestamp) -> bool {
    let (_, reports) = status_of(worker, now);
    reports && (worker.report.health.is_usable() || worker.report.health == Health::Starting)
}
