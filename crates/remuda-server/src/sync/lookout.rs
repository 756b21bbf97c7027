//! Whether anybody could run anything.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use remuda_core::{Health, Worker};
use remuda_store::{Result, WorkerStore};

use crate::wire::status_of;

/// How long an answer is believed: many may wait at once.
const FRESH: Duration = Duration::from_millis(500);

/// What is known of the workers as a whole.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// When somebody last looked, and what was seen before that.
    seen: Mutex<Option<(Instant, bool)>>,
}

impl Lookout {
    /// Whether a worker gets tasks, or may do so in a moment.
    pub(super) async fn has_hope(&self, store: &dyn WorkerStore) -> Result<bool> {
        let when = Instant::now();
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *seen {
                Some((looked, hope)) if looked.elapsed() < FRESH => return Ok(*hope),
                // One looks; those beside it go by what is known.
                Some((looked, _)) => *looked = when,
                None => {}
            }
        }
        let now = Timestamp::now();
        let hope = store.workers().await.map(|workers| workers.iter().any(|worker| hopeful(worker, now)));
        // A store that does not answer says nothing about workers.
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) =
            hope.as_ref().ok().map(|hope| (when, *hope));
        hope
    }
}

fn hopeful(worker: &Worker, now: Timestamp) -> bool {
    let (_, reports) = status_of(worker, now);
    reports && (worker.report.health.is_usable() || worker.report.health == Health::Starting)
}
