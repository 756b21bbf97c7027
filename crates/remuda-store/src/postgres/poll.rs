//! Looking for what nobody told us of: the fallback where `LISTEN` does not work, and the pulse that notices an
//! outage of the database.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;

use super::inner::Inner;

/// Between two looks, give or take a fifth, so that processes do not look all at once.
const PAUSE_MS: std::ops::Range<u64> = 800..1000;
/// While nobody waits for anything.
const IDLE: Duration = Duration::from_secs(5);

/// Looks until the store is closed.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut quiet = Duration::ZERO;
    loop {
        let pause = Duration::from_millis(rand::rng().random_range(PAUSE_MS));
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        quiet += pause;
        if inner.queue.has_claims() {
            if let Err(error) = inner.load_lanes().await {
                tracing::debug!(%error, "could not look for new lanes");
            }
            inner.queue.look_all();
            quiet = Duration::ZERO;
        }
        if inner.beats.has_waiters() {
            inner.look_for_news().await;
            quiet = Duration::ZERO;
        }
        if quiet >= IDLE {
            quiet = Duration::ZERO;
            let pulse = async { inner.sessions.query("SELECT 1", &[]).await };
            if let Err(fault) = inner.sessions.bounded(pulse).await {
                tracing::debug!(?fault, "the database does not answer");
            }
        }
    }
}
