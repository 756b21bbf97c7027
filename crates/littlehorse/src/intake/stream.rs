//! One stream of tasks: a task of its own that reads it until it ends.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::core::StreamId;
use super::desk::Desk;
use crate::client::Host;
use crate::proto;

/// Opens the stream and reads it. `requests` has the first request in it; it ends when nothing more is asked. After `drain`
/// it is read on for a while; `let_go` ends it at once.
pub(super) async fn read(
    desk: Arc<Desk>,
    id: StreamId,
    host: Host,
    requests: mpsc::Receiver<proto::PollTaskRequest>,
    drain: Arc<Notify>,
    let_go: CancellationToken,
) {
    let why = tokio::select! {
        biased;
        why = answers(&desk, id, &host, requests) => why,
        () = drained(&desk, &drain) => String::new(),
        () = let_go.cancelled() => String::new(),
    };
    desk.ended(id, &host, &why);
}

/// Reads until the stream ends; returns why.
async fn answers(
    desk: &Arc<Desk>,
    id: StreamId,
    host: &Host,
    requests: mpsc::Receiver<proto::PollTaskRequest>,
) -> String {
    let mut stub = match desk.client.stub(host).await {
        Ok(stub) => stub,
        Err(error) => return error.to_string(),
    };
    let asked = Instant::now();
    let broken = |status| desk.client.failure(host, "PollTask", asked, &status).to_string();
    // Comes with the first task, so there is no limit of time.
    let mut answers = match stub.poll_task(ReceiverStream::new(requests)).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return broken(status),
    };
    loop {
        match answers.message().await {
            Ok(Some(answer)) => desk.answered(id, host, answer),
            Ok(None) => return "the server ended it".to_owned(),
            Err(status) => return broken(status),
        }
    }
}

async fn drained(desk: &Desk, drain: &Notify) {
    drain.notified().await;
    tokio::time::sleep(desk.options.linger).await;
}
