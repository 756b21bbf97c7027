//! Forms of uploads, read as they come and never far ahead.
//!
//! The parser of forms keeps what comes until it makes sense: what stands before the first boundary, and the head of a field. A
//! form that goes on so without end would be kept whole. So what was taken from the sender since the parser gave something
//! is counted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::multipart::{Field, Multipart, MultipartError, MultipartRejection};
use axum::extract::{FromRequest as _, Request};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};

/// The longest head of a field, with all that stands before it.
pub(crate) const LONGEST_HEAD: usize = 16 << 10;

/// A form as it comes.
#[derive(Debug)]
pub(crate) struct Form {
    form: Multipart,
    /// How many bytes the parser took since it gave something.
    taken: Arc<AtomicUsize>,
}

impl Form {
    /// The form in a request.
    pub(crate) async fn read(request: Request) -> Result<Self, MultipartRejection> {
        let (parts, body) = request.into_parts();
        let taken = Arc::new(AtomicUsize::new(0));
        let body = Bounded { body: body.into_data_stream(), taken: Arc::clone(&taken), pauses: false };
        let body = Body::from_stream(body);
        let form = Multipart::from_request(Request::from_parts(parts, body), &()).await?;
        Ok(Self { form, taken })
    }

    /// The next field, once what is left of the one before was read over.
    pub(crate) async fn next(&mut self) -> Result<Option<Field<'_>>, MultipartError> {
        self.taken.store(0, Ordering::Relaxed);
        let next = self.form.next_field().await;
        // What came behind its head is still to be looked at.
        self.taken.store(0, Ordering::Relaxed);
        next
    }

    /// Counts from now on what the parser takes: for [`pieces`].
    pub(crate) fn counter(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.taken)
    }
}

/// The bytes of a field. Reading it to its end lets the next one be found without delay.
pub(crate) fn pieces(
    field: Field<'_>,
    taken: Arc<AtomicUsize>,
) -> impl Stream<Item = Result<Bytes, MultipartError>> + Send {
    field.inspect(move |_| taken.store(0, Ordering::Relaxed))
}

/// Reads a field over.
pub(crate) async fn skip(field: Field<'_>, taken: Arc<AtomicUsize>) -> Result<(), MultipartError> {
    let mut pieces = std::pin::pin!(pieces(field, taken));
    while let Some(piece) = pieces.next().await {
        piece?;
    }
    Ok(())
}

/// A body that comes one piece at a time, and ends with an error when more was taken than a parser may keep.
struct Bounded<B> {
    body: B,
    taken: Arc<AtomicUsize>,
    /// The parser takes all that is there before it looks at it. So there is nothing for a moment after each piece.
    pauses: bool,
}

impl<B, E> Stream for Bounded<B>
where
    B: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::error::Error + Send + Sync + 'static,
{
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if std::mem::take(&mut self.pauses) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.taken.load(Ordering::Relaxed) > LONGEST_HEAD {
            let error =
                format!("a field, or what is before it, has a head of more than {LONGEST_HEAD} bytes");
            return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::InvalidData, error))));
        }
        let Some(piece) = ready!(Pin::new(&mut self.body).poll_next(cx)) else { return Poll::Ready(None) };
        let piece = piece.map_err(io::Error::other)?;
        self.taken.fetch_add(piece.len(), Ordering::Relaxed);
        self.pauses = true;
        Poll::Ready(Some(Ok(piece)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http::header::CONTENT_TYPE;

    use super::*;

    const BOUNDARY: &str = "abc";

    fn form(pieces: impl IntoIterator<Item = Vec<u8>, IntoIter: Send + 'static>) -> Request {
        let body = stream::iter(pieces.into_iter().map(|piece| Ok::<_, io::Error>(Bytes::from(piece))));
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        Request::builder().header(CONTENT_TYPE, kind).body(Body::from_stream(body)).unwrap()
    }

    fn field(name: &str, length: usize) -> String {
        let bytes = "x".repeat(length);
        format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{bytes}\r\n")
    }

    #[tokio::test]
    async fn what_never_makes_sense_is_not_kept() {
        let head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"");
        for begin in ["", head.as_str()] {
            let endless = std::iter::repeat_n(vec![b'a'; 1000], 1_000_000);
            let mut form = Form::read(form(std::iter::once(begin.into()).chain(endless))).await.unwrap();
            let taken = form.counter();
            assert!(form.next().await.is_err(), "{begin:?}");
            assert!(taken.load(Ordering::Relaxed) < 2 * LONGEST_HEAD);
        }
    }

    #[tokio::test]
    async fn long_fields_come_through_in_pieces_of_any_size() {
        let text = [field("a", 100_000), field("b", 3), field("c", 200_000)].concat();
        let text = format!("{text}--{BOUNDARY}--\r\n").into_bytes();
        for size in [7, 1000, 50_000, text.len()] {
            let chunks: Vec<Vec<u8>> = text.chunks(size).map(<[u8]>::to_vec).collect();
            let mut form = Form::read(form(chunks)).await.unwrap();
            let mut seen = Vec::new();
            loop {
                let taken = form.counter();
                let Some(field) = form.next().await.unwrap() else { break };
                let name = field.name().unwrap_or_default().to_owned();
                if name == "c" {
                    skip(field, taken).await.unwrap();
                    seen.push((name, 0));
                    continue;
                }
                let pieces: Vec<_> = pieces(field, taken).collect().await;
                seen.push((name, pieces.into_iter().map(|piece| piece.unwrap().len()).sum()));
            }
            assert_eq!(seen, [("a".into(), 100_000), ("b".into(), 3), ("c".into(), 0)], "{size}");
        }
    }
}
