//! Hearing what other processes committed, where the database can tell. Nothing depends on it: who waits polls too.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::AsyncMessage;

use super::address::Address;
use super::inner::Inner;
use super::outbox::{CHANNEL, decode};

/// Between two tries to listen, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// Listens until the store is closed, on a connection of its own.
pub(super) async fn run(inner: Arc<Inner>, address: Address) {
    let mut pause = BACKOFF.0;
    loop {
        let heard = tokio::select! {
            () = inner.stop.cancelled() => return,
            heard = listen(&inner, &address) => heard,
        };
        match heard {
            Ok(()) => pause = BACKOFF.0,
            Err(error) => {
                tracing::debug!(error = %super::fault::words(&error), "does not hear other processes")
            }
        }
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(BACKOFF.1);
    }
}

/// Returns when the connection ends.
async fn listen(inner: &Inner, address: &Address) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = address.config.connect(address.tls.clone()).await?;
    let messages = async {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notification(said)) => hear(inner, said.payload()).await,
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    let register = async {
        client.batch_execute(&format!("LISTEN {CHANNEL}")).await?;
        // What happened before we listened is found by looking.
        inner.queue.look_all();
        // The connection ends with its client.
        std::future::pending::<Result<(), tokio_postgres::Error>>().await
    };
    tokio::select! {
        ended = messages => ended,
        failed = register => failed,
    }
}

async fn hear(inner: &Inner, payload: &str) {
    let Some(tidings) = decode(inner.process, payload) else { return };
    if let Err(error) = inner.learn_lanes(&tidings.ready).await {
        tracing::debug!(%error, "could not read new lanes");
    }
    inner.announce_here(&tidings);
}
