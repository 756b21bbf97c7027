//! The answering side of a `PollTask` stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;

use crate::cluster::{Cluster, StreamKey};
use crate::proto::PollTaskResponse;

/// The stream is forgotten when this is dropped: the client is gone.
#[derive(Debug)]
pub(crate) struct Presence {
    cluster: Arc<Cluster>,
    pub(crate) stream: StreamKey,
    _reader: DropGuard,
}

impl Presence {
    pub(crate) fn new(cluster: Arc<Cluster>, stream: StreamKey, reader: CancellationToken) -> Self {
        Self { cluster, stream, _reader: reader.drop_guard() }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.cluster.stream_gone(self.stream);
    }
}

/// Answers, as they are given. It ends only with an error: the real server does not end it either.
#[derive(Debug)]
pub(crate) struct Answers {
    first: Option<PollTaskResponse>,
    more: mpsc::Receiver<Result<PollTaskResponse, Status>>,
    _presence: Presence,
}

impl Answers {
    /// The first one is there already, because nothing of an answer is sent before it.
    pub(crate) fn new(
        first: PollTaskResponse,
        more: mpsc::Receiver<Result<PollTaskResponse, Status>>,
        presence: Presence,
    ) -> Self {
        Self { first: Some(first), more, _presence: presence }
    }
}

impl Stream for Answers {
    type Item = Result<PollTaskResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => self.more.poll_recv(context),
        }
    }
}
