//! Looking for what nobody told us of: the fallback where `LISTEN` does not work, and the pulse that notices an
//! outage of the database.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;

use super::inner::Inner;

/// Between two looks, give or take a little, so that processes do not look all at once.
const PAUSE_MS: std::ops::Range<u64> = 800..1000;

/// Looks until the store is closed.
pub(super) async fn run(inner: Arc<Inner>) {
    loop {
        let pause = Duration::from_millis(rand::rng().random_range(PAUSE_MS));
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        // Also when nobody waits for anything: an outage that is not noticed would not be followed by time to settle.
        if let Err(error) = inner.load_lanes().await {
            tracing::debug!(%error, "could not look for new lanes");
        }
        inner.queue.look_all();
        if inner.beats.has_waiters() {
            inner.look_for_news().await;
        }
    }
}
