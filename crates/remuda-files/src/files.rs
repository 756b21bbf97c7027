//! The store of files.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path as StorePath;
use object_store::{
    Error as StoreError, GetOptions, GetRange, GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutPayload,
};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::bucket;
use crate::content::{Content, Sha256, Stored};
use crate::directory::{Directory, Way};
use crate::error::{BoxError, Error, Result};
use crate::key::FileKey;
use crate::location::{Kind, Location};
use crate::trouble::Trouble;
use crate::upload::{self, Body, Received, Upload};

/// The smallest part that S3 takes, so that three of them (two on their way, one being filled) are all the memory of an upload.
const S3_PART: usize = 5 << 20;

/// S3 takes at most 10,000 parts.
const S3_MAX_SIZE: u64 = 10_000 * S3_PART as u64;

/// S3 copies at most 5 GiB in one request, and a content-addressed upload is moved by a copy.
const S3_MAX_COPY: u64 = 5 << 30;

/// A write to a disk needs no large parts.
const DIRECTORY_PART: usize = 1 << 20;

/// What a process that was killed left of a write is older than this when the write is repeated.
const EARLIER_TRY: Duration = Duration::from_secs(1);

/// A store of files. Clones are cheap and share everything.
#[derive(Clone)]
pub struct Files {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn ObjectStore>,
    /// In front of every key; empty for a directory.
    prefix: StorePath,
    /// `None` on S3.
    directory: Option<Directory>,
    trouble: Trouble,
    /// Removals of what dropped uploads left. Closed from the start: it is never reused, only waited for.
    background: TaskTracker,
}

impl Files {
    /// Opens the store. A directory is made when it is missing; an object store is not asked anything yet.
    pub fn open(location: &Location) -> Result<Files> {
        let background = TaskTracker::new();
        background.close();
        let name = location.to_string();
        let inner = match &location.kind {
            Kind::Directory(path) => {
                let trouble = Trouble::new(name, Vec::new());
                let directory = Directory::open(path, trouble.clone())?;
                let store = LocalFileSystem::new_with_prefix(directory.root())
                    .map_err(|error| trouble.of_write(&error))?
                    .with_fsync(true)
                    .with_automatic_cleanup(true);
                let prefix = StorePath::default();
                Inner { store: Arc::new(store), prefix, directory: Some(directory), trouble, background }
            }
            Kind::S3 { bucket, prefix, settings } => {
                let store = bucket::open(&name, bucket, settings)?;
                let trouble = Trouble::new(name, bucket::secrets(settings));
                let prefix = StorePath::parse(prefix).map_err(|error| trouble.other(error.to_string()))?;
                Inner { store: Arc::new(store), prefix, directory: None, trouble, background }
            }
        };
        Ok(Files { inner: Arc::new(inner) })
    }

    /// Where this is, for messages.
    pub fn location(&self) -> &str {
        self.inner.trouble.location()
    }

    /// The file's path, if this store is a directory on this machine.
    pub fn path_on_disk(&self, key: &FileKey) -> Option<PathBuf> {
        self.inner.directory.as_ref().map(|directory| directory.path_of(key))
    }

    /// Writes a stream into a file, and replaces what was there.
    ///
    /// The file becomes visible whole or not at all: when the stream fails, brings more than `limit` bytes, or the future is
    /// dropped, nothing of it is ever seen, and what was there before stays. Memory is bounded whatever the size. When it
    /// returns the file is durable.
    pub async fn put<E>(
        &self,
        key: &FileKey,
        stream: impl Stream<Item = Result<Bytes, E>> + Send,
        limit: Option<u64>,
    ) -> Result<Stored>
    where
        E: Into<BoxError> + Send,
    {
        let began = SystemTime::now();
        self.check(key, Way::Folders).await?;
        let Received { stored, body } = self.receive(key, stream, limit.unwrap_or(u64::MAX)).await?;
        match body {
            Body::Whole(bytes) => self.put_whole(key, bytes).await?,
            Body::Parts(upload) => upload.complete().await?,
        }
        if let Some(directory) = &self.inner.directory {
            let before = began.checked_sub(EARLIER_TRY).unwrap_or(SystemTime::UNIX_EPOCH);
            if let Err(error) = directory.remove_tries(key, before).await {
                // The file is there, and that is what counts.
                tracing::debug!(%key, %error, "what earlier tries left stays");
            }
        }
        Ok(stored)
    }

    /// Writes a stream into a file whose key is the hash of its content, `assets/<first 2 digits>/<sha256>`. Content that is
    /// there already is not written again.
    ///
    /// On S3 at most 5 GiB.
    pub async fn put_content_addressed<E>(
        &self,
        stream: impl Stream<Item = Result<Bytes, E>> + Send,
        limit: Option<u64>,
    ) -> Result<(FileKey, Stored)>
    where
        E: Into<BoxError> + Send,
    {
        self.stage(stream, limit).await?.keep().await
    }

    /// Reads a stream to its end, for [`Staged::keep`]: until then nothing of it is seen, and when what this returns is dropped,
    /// nothing is left.
    ///
    /// On S3 at most 5 GiB.
    pub async fn stage<E>(
        &self,
        stream: impl Stream<Item = Result<Bytes, E>> + Send,
        limit: Option<u64>,
    ) -> Result<Staged>
    where
        E: Into<BoxError> + Send,
    {
        let temporary = FileKey::temporary(Uuid::new_v4());
        self.check(&temporary, Way::Folders).await?;
        let most = if self.inner.directory.is_some() { u64::MAX } else { S3_MAX_COPY };
        let received = self.receive(&temporary, stream, limit.unwrap_or(u64::MAX).min(most)).await?;
        Ok(Staged { files: self.clone(), temporary, received })
    }

    /// Takes a file away, to where nobody finds it, so that it can be asked whether anybody needs it while nobody new does.
    /// `None`: it was not there. What is neither put back nor removed is removed by [`Files::sweep_temporary`].
    pub async fn set_aside(&self, key: &FileKey) -> Result<Option<Aside>> {
        if self.size(key).await?.is_none() {
            return Ok(None);
        }
        let away = FileKey::temporary(Uuid::new_v4());
        self.check(&away, Way::Folders).await?;
        match self.inner.store.rename(&self.path(key), &self.path(&away)).await {
            Ok(()) => Ok(Some(Aside { files: self.clone(), key: key.clone(), away })),
            Err(error) => match self.explain(key, &error).await {
                // Somebody else was faster.
                Error::NotFound { .. } => Ok(None),
                error => Err(error),
            },
        }
    }

    /// Opens a file, or a part of it. A range that reaches past the end is cut; one that begins there is [`Error::BadRange`].
    pub async fn get(&self, key: &FileKey, range: Option<Range<u64>>) -> Result<Content> {
        self.check(key, Way::Whole).await?;
        if let Some(range) = &range
            && range.start >= range.end
        {
            return self.get_nothing(key, range.start).await;
        }
        let asked = range.clone().map(GetRange::Bounded);
        let options = GetOptions { range: asked, ..GetOptions::default() };
        let result = match self.inner.store.get_opts(&self.path(key), options).await {
            Ok(result) => result,
            Err(error) => return Err(self.explain_get(key, range, &error).await),
        };
        let (size, range) = (result.meta.size, result.range.clone());
        let stream = match (result.payload, &self.inner.directory) {
            (GetResultPayload::File(file, _), Some(directory)) => {
                directory.read(file, key, range.clone()).await?
            }
            (payload, _) => {
                let (trouble, key) = (self.inner.trouble.clone(), key.clone());
                let stream = object_store::GetResult { payload, ..result }.into_stream();
                stream.map_err(move |error| trouble.with_key(&key, &error)).boxed()
            }
        };
        Ok(Content { size, range, stream })
    }

    /// The size of a file. `Ok(None)` means that it is surely not there: a store that does not answer, a missing bucket or a
    /// disk that is not mounted is an error.
    pub async fn size(&self, key: &FileKey) -> Result<Option<u64>> {
        self.check(key, Way::Whole).await?;
        match self.inner.store.head(&self.path(key)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(error) => match self.explain(key, &error).await {
                Error::NotFound { .. } => Ok(None),
                error => Err(error),
            },
        }
    }

    /// Removes a file. One that is not there is fine.
    pub async fn delete(&self, key: &FileKey) -> Result<()> {
        self.check(key, Way::Folders).await?;
        match self.inner.store.delete(&self.path(key)).await {
            Ok(()) => Ok(()),
            Err(error) => match self.explain(key, &error).await {
                Error::NotFound { .. } => Ok(()),
                error => Err(error),
            },
        }
    }

    /// Removes every file below a folder, and tells how many there were. None is fine.
    pub async fn delete_all(&self, prefix: &FileKey) -> Result<u64> {
        if let Some(directory) = &self.inner.directory {
            return directory.remove_all(prefix).await;
        }
        self.delete_listed(prefix, |_| true).await
    }

    /// Removes every file below a folder except those in the named folders directly below it, and tells how many it
    /// removed. Needs one listing.
    pub async fn delete_all_but(&self, prefix: &FileKey, kept: &BTreeSet<String>) -> Result<u64> {
        if kept.is_empty() {
            return self.delete_all(prefix).await;
        }
        if let Some(directory) = &self.inner.directory {
            return directory.remove_all_but(prefix, kept.clone()).await;
        }
        let (top, kept) = (format!("{}/", self.path(prefix)), kept.clone());
        self.delete_listed(prefix, move |meta| {
            let below = meta.location.as_ref().strip_prefix(&top);
            below.and_then(|below| below.split('/').next()).is_some_and(|folder| !kept.contains(folder))
        })
        .await
    }

    /// The contents in one of the 256 folders of content-addressed files that were not written to for that long.
    pub async fn contents(&self, folder: u8, older_than: Duration) -> Result<Vec<Sha256>> {
        let folder = FileKey::assets_below(folder);
        self.check(&folder, Way::Whole).await?;
        let now = SystemTime::now();
        let before = now.checked_sub(older_than).unwrap_or(SystemTime::UNIX_EPOCH);
        let before = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut found = self.inner.store.list(Some(&self.path(&folder)));
        let mut contents = Vec::new();
        while let Some(meta) = found.next().await {
            let meta = meta.map_err(|error| self.inner.trouble.of_write(&error))?;
            let is_old = u64::try_from(meta.last_modified.timestamp()).is_ok_and(|seconds| seconds <= before);
            let content = meta.location.filename().and_then(|name| name.parse::<Sha256>().ok());
            contents.extend(content.filter(|_| is_old));
        }
        Ok(contents)
    }

    /// Removes what interrupted content-addressed uploads left behind, if it was not written to for that long.
    pub async fn sweep_temporary(&self, older_than: Duration) -> Result<u64> {
        let now = SystemTime::now();
        let before = now.checked_sub(older_than).unwrap_or(SystemTime::UNIX_EPOCH);
        if let Some(directory) = &self.inner.directory {
            return directory.remove_older(&FileKey::all_temporary(), before).await;
        }
        let before = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        self.delete_listed(&FileKey::all_temporary(), move |meta| {
            u64::try_from(meta.last_modified.timestamp()).is_ok_and(|seconds| seconds < before)
        })
        .await
    }

    /// Waits until what dropped or failed uploads left has been removed. For the end of a process.
    pub async fn settled(&self) {
        self.inner.background.wait().await;
    }

    pub(crate) fn as_directory(&self) -> Option<&Directory> {
        self.inner.directory.as_ref()
    }

    pub(crate) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.inner.store
    }

    pub(crate) fn trouble(&self) -> &Trouble {
        &self.inner.trouble
    }

    pub(crate) fn path(&self, key: &FileKey) -> StorePath {
        let whole = match self.inner.prefix.as_ref() {
            "" => key.to_string(),
            prefix => format!("{prefix}/{key}"),
        };
        // Not `from`, which escapes what is not ASCII. A key has nothing that `parse` refuses.
        StorePath::parse(&whole).unwrap_or_else(|_| StorePath::from(whole))
    }

    async fn check(&self, key: &FileKey, way: Way) -> Result<()> {
        match &self.inner.directory {
            Some(directory) => directory.check(key, way).await,
            None => Ok(()),
        }
    }

    async fn receive<E>(
        &self,
        key: &FileKey,
        stream: impl Stream<Item = Result<Bytes, E>> + Send,
        limit: u64,
    ) -> Result<Received>
    where
        E: Into<BoxError> + Send,
    {
        let (part, most) = match self.inner.directory {
            Some(_) => (DIRECTORY_PART, u64::MAX),
            None => (S3_PART, S3_MAX_SIZE),
        };
        upload::receive(stream, limit.min(most), part, || self.begin(key)).await
    }

    async fn begin(&self, key: &FileKey) -> Result<Upload> {
        let (store, path) = (self.inner.store.clone(), self.path(key));
        let upload = match &self.inner.directory {
            None => store.put_multipart(&path).await,
            // Making and syncing directories would block this thread.
            Some(_) => {
                let runtime = tokio::runtime::Handle::current();
                let begin = move || runtime.block_on(store.put_multipart(&path));
                tokio::task::spawn_blocking(begin).await.unwrap_or_else(|error| Err(error.into()))
            }
        };
        let upload = upload.map_err(|error| self.inner.trouble.of_write(&error))?;
        Ok(Upload::new(upload, self.inner.background.clone(), self.inner.trouble.clone()))
    }

    async fn put_whole(&self, key: &FileKey, bytes: Bytes) -> Result<()> {
        let written = self.inner.store.put(&self.path(key), PutPayload::from_bytes(bytes)).await;
        written.map(drop).map_err(|error| self.inner.trouble.of_write(&error))
    }

    async fn rename(&self, from: &FileKey, to: &FileKey) -> Result<()> {
        let renamed = self.inner.store.rename(&self.path(from), &self.path(to)).await;
        renamed.map_err(|error| self.inner.trouble.of_write(&error))
    }

    async fn delete_listed(
        &self,
        prefix: &FileKey,
        wanted: impl Fn(&ObjectMeta) -> bool + Send + 'static,
    ) -> Result<u64> {
        let found = self.inner.store.list(Some(&self.path(prefix)));
        let found = found
            .try_filter(move |meta| std::future::ready(wanted(meta)))
            .map_ok(|meta| meta.location)
            .boxed();
        let mut deleted = self.inner.store.delete_stream(found);
        let mut count = 0;
        while let Some(result) = deleted.next().await {
            match result {
                Ok(_) => count += 1,
                // Somebody else was faster.
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(self.inner.trouble.of_write(&error)),
            }
        }
        Ok(count)
    }

    async fn get_nothing(&self, key: &FileKey, start: u64) -> Result<Content> {
        let size = self.size(key).await?.ok_or_else(|| Error::NotFound { key: key.clone() })?;
        if start > size {
            return Err(Error::BadRange { size });
        }
        Ok(Content { size, range: start..start, stream: futures_util::stream::empty().boxed() })
    }

    async fn explain_get(&self, key: &FileKey, range: Option<Range<u64>>, error: &StoreError) -> Error {
        let error = self.explain(key, error).await;
        // Stores tell in different ways that a range cannot be had; the size tells in one.
        if let (Some(range), Error::Other { .. }) = (range, &error)
            && let Ok(Some(size)) = self.size(key).await
            && range.start >= size
        {
            return Error::BadRange { size };
        }
        error
    }

    /// What a failed request about a key means. "Not there" is believed only when the store itself is there.
    async fn explain(&self, key: &FileKey, error: &StoreError) -> Error {
        let error = self.inner.trouble.with_key(key, error);
        if !matches!(error, Error::NotFound { .. }) {
            return error;
        }
        let present = match &self.inner.directory {
            Some(directory) => directory.check_present().await,
            // A missing bucket also answers 404 to a question about a file; a listing tells the two apart.
            None => match self.inner.store.list(Some(&self.path(key))).next().await {
                Some(Err(error)) => Err(self.inner.trouble.of_write(&error)),
                _ => Ok(()),
            },
        };
        present.err().unwrap_or(error)
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Files({})", self.location())
    }
}

/// A content that was read to its end and is not seen yet. When it is dropped, nothing of it is left.
pub struct Staged {
    files: Files,
    temporary: FileKey,
    received: Received,
}

impl Staged {
    /// What came.
    pub fn stored(&self) -> Stored {
        self.received.stored
    }

    /// Makes a file of it, under the key of its content. Content that is there already is not written again.
    pub async fn keep(self) -> Result<(FileKey, Stored)> {
        let Self { files, temporary, received: Received { stored, body } } = self;
        let key = FileKey::asset(stored.sha256);
        // A file of another size was damaged from outside, and is replaced.
        let known = files.size(&key).await? == Some(stored.size);
        match body {
            Body::Whole(_) | Body::Parts(_) if known => {}
            Body::Whole(bytes) => {
                files.check(&key, Way::Folders).await?;
                files.put_whole(&key, bytes).await?;
            }
            Body::Parts(upload) => {
                files.check(&key, Way::Folders).await?;
                // Removes it also when this future is dropped between the two steps.
                let cleanup = RemoveLater { files: files.clone(), key: Some(temporary.clone()) };
                upload.complete().await?;
                files.rename(&temporary, &key).await?;
                cleanup.done();
            }
        }
        Ok((key, stored))
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged").field("stored", &self.received.stored).finish_non_exhaustive()
    }
}

/// A file that was set aside.
#[derive(Debug)]
pub struct Aside {
    files: Files,
    key: FileKey,
    away: FileKey,
}

impl Aside {
    /// Puts it back where it was.
    pub async fn put_back(self) -> Result<()> {
        self.files.check(&self.key, Way::Folders).await?;
        self.files.rename(&self.away, &self.key).await
    }

    /// Removes it.
    pub async fn remove(self) -> Result<()> {
        self.files.delete(&self.away).await
    }
}

/// Removes a file in the background unless it is told that there is no need.
struct RemoveLater {
    files: Files,
    key: Option<FileKey>,
}

impl RemoveLater {
    fn done(mut self) {
        self.key = None;
    }
}

impl Drop for RemoveLater {
    fn drop(&mut self) {
        let (Some(key), Ok(runtime)) = (self.key.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        let files = self.files.clone();
        let remove = async move {
            if let Err(error) = files.delete(&key).await {
                tracing::debug!(files.key = %key, error = %error, "a temporary file was not removed");
            }
        };
        self.files.inner.background.spawn_on(remove, &runtime);
    }
}
