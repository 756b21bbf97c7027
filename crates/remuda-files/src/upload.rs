//! From the caller's stream into the store, in constant memory.
//!
//! A file that fits into one part is written with one request when its stream has ended. A larger one becomes a multipart
//! upload (on a disk: a temporary file), which is visible only after [`Upload::complete`], and which removes itself when it is
//! dropped before: because the stream failed, because the store failed, or because nobody waits for it any more.

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use object_store::{MultipartUpload, PutPayload};
use sha2::{Digest, Sha256 as Hasher};
use tokio_util::task::TaskTracker;

use crate::content::{Sha256, Stored};
use crate::error::{BoxError, Error, Result};
use crate::trouble::Trouble;

/// How many parts travel at once, beside the one that is being filled.
const PARTS_UNDER_WAY: usize = 2;

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
    trouble: &Trouble,
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
    // The parts are declared last, so that they are dropped before the upload that they belong to is given up.
    let mut upload: Option<Upload> = None;
    let mut parts = FuturesUnordered::new();

    loop {
        // Parts travel while the stream is waited for.
        let next = tokio::select! {
            biased;
            Some(done) = parts.next(), if !parts.is_empty() => {
                let done: object_store::Result<()> = done;
                done.map_err(|error| trouble.of_write(&error))?;
                continue;
            }
            next = stream.next() => next,
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
                while parts.len() >= PARTS_UNDER_WAY {
                    finish_one(&mut parts, trouble).await?;
                }
                if let Some(upload) = &mut upload {
                    parts.push(upload.put_part(part.split().freeze()));
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
    parts.push(upload.put_part(part.freeze()));
    while !parts.is_empty() {
        finish_one(&mut parts, trouble).await?;
    }
    Ok(Received { stored, body: Body::Parts(upload) })
}

async fn finish_one(parts: &mut FuturesUnordered<object_store::UploadPart>, trouble: &Trouble) -> Result<()> {
    match parts.next().await {
        Some(Err(error)) => Err(trouble.of_write(&error)),
        _ => Ok(()),
    }
}

/// An upload that is aborted unless it is completed.
pub(crate) struct Upload {
    upload: Option<Box<dyn MultipartUpload>>,
    background: TaskTracker,
    trouble: Trouble,
}

impl Upload {
    pub(crate) fn new(upload: Box<dyn MultipartUpload>, background: TaskTracker, trouble: Trouble) -> Self {
        Self { upload: Some(upload), background, trouble }
    }

    fn put_part(&mut self, part: Bytes) -> object_store::UploadPart {
        match &mut self.upload {
            Some(upload) => upload.put_part(PutPayload::from_bytes(part)),
            // Only `complete` and `drop` take the upload out, and both take all of `self`.
            None => Box::pin(std::future::ready(Ok(()))),
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
        let trouble = self.trouble.clone();
        let abort = async move {
            // What cannot be removed now is not visible either; the store's own rules for unfinished uploads remove it.
            if let Err(error) = upload.abort().await {
                let error = trouble.of_write(&error);
                tracing::debug!(error = %error, "an unfinished upload was not removed");
            }
        };
        self.background.spawn_on(abort, &runtime);
    }
}
