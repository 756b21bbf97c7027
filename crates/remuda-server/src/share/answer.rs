//! Answers that keep something until they are written.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// A body that keeps something until it was written, or its reader is gone. A connection takes pieces before it can write them,
/// and lets go of a body that has no more; so every piece keeps it as well.
#[derive(Debug)]
pub(crate) struct Held<T> {
    body: Body,
    kept: Arc<T>,
}

/// Bytes that keep something until they are gone.
#[derive(Debug)]
struct Piece<T> {
    bytes: Bytes,
    _kept: Arc<T>,
}

impl<T> AsRef<[u8]> for Piece<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same bytes; `kept` is kept until the last of them is gone.
pub(crate) fn keeping<T: Send + Sync + 'static>(bytes: Bytes, kept: Arc<T>) -> Bytes {
    Bytes::from_owner(Piece { bytes, _kept: kept })
}

impl<T: Send + Sync + 'static> Held<T> {
    pub(crate) fn wrap(body: Body, kept: T) -> Body {
        Body::new(Self { body, kept: Arc::new(kept) })
    }
}

impl<T: Send + Sync + 'static> HttpBody for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let kept = Arc::clone(&self.kept);
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| keeping(bytes, kept)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn what_is_kept_goes_with_the_last_byte_and_not_with_the_body() {
        let kept = Arc::new(());
        let mut body = Held::wrap(Body::from(vec![b'x'; 100]), Arc::clone(&kept));
        let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        let half = bytes.slice(50..);
        drop(bytes);
        assert_eq!(Arc::strong_count(&kept), 2, "it is not written yet");
        drop(half);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
