//! From the caller's stream into the store, in constant memory.
//!
//! A file that fits into one part is written with one request when its stream has ended. A larger one becomes a multipart
//! upload (on a disk: a temporary file), which is visible only after [`Upload::complete`], and which removes itself when it is
//! dropped before: because the stream failed, because the store failed, or because nobody waits for it any more.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use object_store::{MultipartUpload, PutPayload, UploadPart};
use sha2::{Digest, Sha256 as Hasher};
use tokio_util::task::TaskTracker;

use crate::content::{Sha256, Stored};
use crate::error::{BoxError, Error, Result};
use crate::trouble::Trouble;

/// How many parts travel at once, beside the one that is being filled.
const PARTS_UNDER_WAY: usize = 2;

/// How long parts on their way may take to arrive before their upload is given up.
const LAST_PARTS: Duration = Duration::from_secs(5);

/// The first allocation for a file whose size is not known.
const FIRST_ALLOCATION: usize = 64 << 10;

/// The whole stream has been read.
pub(crate) struct Received {
    pub(crate) stored: Stored,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    /// It fitted into one part, and nothing of it is in the store yet.
    Whole(Bytes),
    /// All parts are in the store, and nothing of it is visible yet.
    Parts(Upload),
}

/// Reads a stream to its end. `begin` is called when it turns out to be longer than one part.
pub(crate) async fn receive<E, F>(
    stream: impl Stream<Item = Result<Bytes, E>> + Send,
    limit: u64,
    part_size: usize,
    begin: impl FnOnce() -> F,
) -> Result<Received>
where
    E: Into<BoxError> + Send,
    F: Future<Output = Result<Upload>>,
{
    let mut stream = pin!(stream);
    let mut hasher = Hasher::new();
    let mut size: u64 = 0;
    let mut part = BytesMut::new();
    let mut begin = Some(begin);
    let mut upload: Option<Upload> = None;

    loop {
        // Parts travel while the stream is waited for.
        let next = match &mut upload {
            Some(upload) if upload.under_way() > 0 => tokio::select! {
                biased;
                done = upload.finish_one() => {
                    done?;
                    continue;
                }
                next = stream.next() => next,
            },
            _ => stream.next().await,
        };
        let Some(chunk) = next else { break };
        let mut chunk = chunk.map_err(|error| Error::Source(error.into()))?;
        size += chunk.len() as u64;
        if size > limit {
            return Err(Error::TooLarge { limit });
        }
        while !chunk.is_empty() {
            if part.len() == part_size {
                if let Some(begin) = begin.take() {
                    upload = Some(begin().await?);
                }
                if let Some(upload) = &mut upload {
                    while upload.under_way() >= PARTS_UNDER_WAY {
                        upload.finish_one().await?;
                    }
                    upload.put_part(part.split().freeze());
                }
            }
            let piece = chunk.split_to(chunk.len().min(part_size - part.len()));
            hasher.update(&piece);
            // Copied, because a small piece may keep a large network buffer alive.
            if part.capacity() - part.len() < piece.len() {
                let small = part.is_empty() && piece.len() <= FIRST_ALLOCATION && begin.is_some();
                part.reserve(if small { FIRST_ALLOCATION.min(part_size) } else { part_size - part.len() });
            }
            part.extend_from_slice(&piece);
        }
    }

    let stored = Stored { size, sha256: Sha256(hasher.finalize().into()) };
    let Some(mut upload) = upload else {
        return Ok(Received { stored, body: Body::Whole(part.freeze()) });
    };
    upload.put_part(part.freeze());
    while upload.under_way() > 0 {
        upload.finish_one().await?;
    }
    Ok(Received { stored, body: Body::Parts(upload) })
}

/// An upload that is aborted unless it is completed.
pub(crate) struct Upload {
    upload: Option<Box<dyn MultipartUpload>>,
    parts: FuturesUnordered<UploadPart>,
    background: TaskTracker,
    trouble: Trouble,
}

impl Upload {
    pub(crate) fn new(upload: Box<dyn MultipartUpload>, background: TaskTracker, trouble: Trouble) -> Self {
        Self { upload: Some(upload), parts: FuturesUnordered::new(), background, trouble }
    }

    fn under_way(&self) -> usize {
        self.parts.len()
    }

    fn put_part(&mut self, part: Bytes) {
        // Only `complete` and `drop` take the upload out, and both take all of `self`.
        if let Some(upload) = &mut self.upload {
            self.parts.push(upload.put_part(PutPayload::from_bytes(part)));
        }
    }

    /// Drives all parts that are under way until one of them is through.
    async fn finish_one(&mut self) -> Result<()> {
        match self.parts.next().await {
            Some(Err(error)) => Err(self.trouble.of_write(&error)),
            _ => Ok(()),
        }
    }

    /// Makes the file visible, all at once. When this future is dropped while it waits, the file is there whole or not at all.
    pub(crate) async fn complete(mut self) -> Result<()> {
        let Some(upload) = &mut self.upload else { return Ok(()) };
        upload.complete().await.map_err(|error| self.trouble.of_write(&error))?;
        self.upload = None;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let (Some(mut upload), Ok(runtime)) = (self.upload.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let (trouble, mut parts) = (self.trouble.clone(), std::mem::take(&mut self.parts));
        let abort = async move {
            // A part that arrives after the end of its upload would stay at the server.
            let through = async { while parts.next().await.is_some() {} };
            let late = tokio::time::timeout(LAST_PARTS, through).await.is_err();
            drop(parts);
            // What cannot be removed now is not visible either; the store's own rules for unfinished uploads remove it.
            if let Err(error) = upload.abort().await {
                let error = trouble.of_write(&error);
                tracing::debug!(error = %error, parts.late = late, "an unfinished upload was not removed");
            }
        };
        self.background.spawn_on(abort, &runtime);
    }
}
