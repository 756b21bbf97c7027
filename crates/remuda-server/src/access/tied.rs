//! What a request holds open ends with its key: the handler that waits, the body that is sent, and the connection itself
//! when its reader takes nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http::Request;
use hyper::body::{Frame, SizeHint};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::access::keys::Admission;

/// How long the refusal has to reach its reader before the connection is cut.
const GRACE: Duration = Duration::from_millis(200);

/// Ties the rest of an answer to the key that it was asked for with. What is there as a whole already is left alone.
pub(super) fn tie(admission: Arc<Admission>, response: Response) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| {
        let over = Box::pin(admission.token().clone().cancelled_owned());
        Body::new(Tied { body, over, _held: admission })
    })
}

struct Tied {
    body: Body,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    /// So that the keys are looked at until the answer has ended.
    _held: Arc<Admission>,
}

#[derive(Debug, thiserror::Error)]
#[error("the key was revoked")]
struct Revoked;

impl HttpBody for Tied {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.over.as_mut().poll(cx).is_ready() {
            // An error, not an end: half a file must not look like a whole one.
            return Poll::Ready(Some(Err(axum::Error::new(Revoked))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whose request a connection is busy with. Requests of one connection follow each other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line(Arc<watch::Sender<Option<CancellationToken>>>);

impl Line {
    /// A line for a request to carry.
    pub(crate) fn add_to<B>(&self, request: &mut Request<B>) {
        request.extensions_mut().insert(self.clone());
    }

    /// From now on the connection is busy for this caller.
    pub(super) fn busy_for(&self, admission: &Admission) {
        self.0.send_replace(Some(admission.token().clone()));
    }

    /// Waits until the connection must be cut: its key was revoked, and it did not end by itself.
    pub(crate) async fn is_to_be_cut(&self) {
        let mut callers = self.0.subscribe();
        loop {
            let caller = callers.borrow_and_update().clone();
            let revoked = async {
                match caller {
                    Some(caller) => caller.cancelled().await,
                    None => std::future::pending().await,
                }
                tokio::time::sleep(GRACE).await;
            };
            tokio::select! {
                () = revoked => return,
                // The sender is our own.
                _ = callers.changed() => {}
            }
        }
    }
}
