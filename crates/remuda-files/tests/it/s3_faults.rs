//! A server that takes uploads badly: what is held in memory meanwhile, and what becomes of the upload.

#![allow(clippy::expect_used, reason = "a fixture that fails ends its test")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use remuda_files::Error;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CreateMultipartUploadInput,
    CreateMultipartUploadOutput, UploadPartInput, UploadPartOutput,
};
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};
use tokio::sync::watch;

use crate::s3_server::S3Server;
use crate::suite::key;

/// What becomes of a part.
#[derive(Clone, Copy)]
enum Fault {
    /// It is never read and never answered.
    Stall,
    /// The server has forgotten the rights that it gave at the beginning.
    Refuse,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    parts: u32,
    aborted: bool,
}

struct BadServer {
    fault: Fault,
    seen: watch::Sender<Seen>,
}

#[async_trait::async_trait]
impl S3 for BadServer {
    async fn create_multipart_upload(
        &self,
        _: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let output = CreateMultipartUploadOutput { upload_id: Some("one".to_owned()), ..Default::default() };
        Ok(S3Response::new(output))
    }

    async fn upload_part(&self, _: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        self.seen.send_modify(|seen| seen.parts += 1);
        match self.fault {
            Fault::Stall => std::future::pending().await,
            Fault::Refuse => Err(s3_error!(AccessDenied)),
        }
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        assert_eq!(request.input.upload_id, "one");
        self.seen.send_modify(|seen| seen.aborted = true);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}

async fn start(fault: Fault) -> (S3Server, watch::Receiver<Seen>) {
    let (seen, watch) = watch::channel(Seen::default());
    (S3Server::start_with(BadServer { fault, seen }).await, watch)
}

/// A stream that always has more, and the bytes that were taken from it.
fn endless() -> (impl Stream<Item = io::Result<Bytes>> + Send, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    let stream = stream::repeat_with(move || {
        count.fetch_add(1 << 18, Ordering::Relaxed);
        Ok(Bytes::from(vec![7; 1 << 18]))
    });
    (stream, taken)
}

#[tokio::test]
async fn a_slow_server_does_not_fill_the_memory() {
    let (server, mut seen) = start(Fault::Stall).await;
    let files = server.files();
    let (stream, taken) = endless();
    let place = key("outputs/a/b");
    {
        let write = files.put(&place, stream, None);
        // When two parts have arrived, nothing but memory would keep the write from taking all that the stream has.
        tokio::select! {
            result = write => unreachable!("no part is ever answered: {result:?}"),
            seen = seen.wait_for(|seen| seen.parts == 2) => drop(seen.expect("the server lives")),
        }
    }
    let taken = taken.load(Ordering::Relaxed);
    assert!((10 << 20..=16 << 20).contains(&taken), "{taken} bytes were taken");
    files.settled().await;
    assert!(seen.borrow().aborted, "the dropped upload is taken back");
}

#[tokio::test]
async fn a_part_that_is_refused_ends_the_upload() {
    let (server, seen) = start(Fault::Refuse).await;
    let files = server.files();
    let (stream, taken) = endless();
    let error = files.put(&key("outputs/a/b"), stream.boxed(), None).await.expect_err("no part is taken");
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(taken.load(Ordering::Relaxed) <= 16 << 20);
    files.settled().await;
    assert!(seen.borrow().aborted, "the failed upload is taken back");
}
