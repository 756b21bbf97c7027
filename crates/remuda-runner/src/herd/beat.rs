//! The one loop that renews everything this process holds.

use std::sync::Arc;
use std::time::Duration;

use remuda_store::BeatRequest;
use tokio_util::sync::CancellationToken;

use super::{Shared, jitter};
use crate::board::{Moment, PULSE};
use crate::source::{Result, SourceError};

/// How long a new lease waits for others before the source is told of it: until then nothing can be said about it.
const GATHER: Duration = Duration::from_millis(300);

/// Two beats are never closer than this, whatever the source answers.
const SHORTEST: Duration = Duration::from_millis(50);

/// Beats until it is stopped.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let timing = &shared.options.timing;
    let mut well = true;
    loop {
        if shared.board.is_empty() {
            tokio::select! {
                () = stop.cancelled() => return,
                () = shared.board.changed.notified() => {}
                () = shared.board.urgent.notified() => {}
            }
        }
        // This one renews and is never cut short; the next one waits for news, and may be.
        let renewed = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            renewed = beat(&shared, Duration::ZERO) => renewed,
        };
        let waited = match renewed {
            Ok(()) => tokio::select! {
                biased;
                () = stop.cancelled() => return,
                waited = beat(&shared, jitter(timing.beat)) => waited,
                () = gathered(&shared) => Ok(()),
            },
            Err(error) => Err(error),
        };
        let pause = match waited {
            Ok(()) if well => SHORTEST,
            Ok(()) => {
                well = true;
                tracing::info!("the source answers again");
                SHORTEST
            }
            Err(error) => {
                shared.counters.beats_failed.one();
                if std::mem::take(&mut well) {
                    tracing::warn!(%error, "the source does not take our beats; renders go on, nothing new is begun");
                }
                jitter(timing.beat_retry)
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Shows that this process is not frozen.
pub(super) async fn pulse(shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        shared.board.pulse();
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PULSE) => {}
        }
    }
}

async fn gathered(shared: &Shared) {
    let gathered = async {
        shared.board.changed.notified().await;
        tokio::time::sleep(GATHER).await;
    };
    tokio::select! {
        () = shared.board.urgent.notified() => {}
        () = gathered => {}
    }
}

/// One beat. The renewal counts from the start of the request, whenever the answer comes.
pub(super) async fn beat(shared: &Shared, wait: Duration) -> Result<()> {
    let (leases, workers) = shared.board.snapshot();
    if leases.is_empty() && workers.is_empty() {
        return Ok(());
    }
    let asked = Moment::now();
    let request =
        BeatRequest { owner: shared.options.owner, leases: leases.clone(), workers: workers.clone(), wait };
    let limit = wait + shared.options.timing.source;
    let reply = match tokio::time::timeout(limit, shared.source.beat(request)).await {
        Ok(reply) => reply?,
        Err(_) => return Err(SourceError::Unavailable(format!("no answer to a beat within {limit:?}"))),
    };
    let lost = shared.board.beaten(asked, &leases, workers, &reply);
    shared.counters.leases_lost.add(lost);
    Ok(())
}
