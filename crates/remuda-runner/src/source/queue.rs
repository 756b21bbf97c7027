//! The queue as a source: a store and its files in this process.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use remuda_core::transition::Ending;
use remuda_core::{
    AttemptNo, Claim, Fence, Harm, Harmed, Installation, Lease, LeaseRef, OwnerId, Placement, Requirements,
    Sha256, WorkerId, WorkerSpec,
};
use remuda_files::{FileKey, Files};
use remuda_store::{
    Acquired, AdoptRequest, BeatReply, BeatRequest, ClaimRequest, EndReply, Error as StoreError, RunnerStore,
    Store, WorkerStore,
};

use super::{ByteStream, Delivered, NewFile, Result, Source, SourceError, from_files};
use remuda_frames::{Frame, FrameHub};
use remuda_preflight::Preflight;

/// The largest output that is taken, unless another limit is set.
const LARGEST_OUTPUT: u64 = 64 << 30;

/// Tasks from a store in this process.
#[derive(Debug, Clone)]
pub struct QueueSource {
    store: Arc<dyn RunnerStore>,
    workers: Arc<dyn WorkerStore>,
    preflight: Arc<Preflight>,
    files: Files,
    hub: FrameHub,
    owner: OwnerId,
    largest_output: u64,
}

impl QueueSource {
    /// Puts the parts together. The pre-flight is the one of this process: it remembers what it has read. `owner` is the process.
    pub fn new(
        store: Arc<dyn Store>,
        preflight: Arc<Preflight>,
        files: Files,
        hub: FrameHub,
        owner: OwnerId,
    ) -> Self {
        let workers: Arc<dyn WorkerStore> = store.clone();
        Self { store, workers, preflight, files, hub, owner, largest_output: LARGEST_OUTPUT }
    }

    /// Takes no larger outputs than this.
    #[must_use]
    pub fn largest_output(mut self, bytes: u64) -> Self {
        self.largest_output = bytes;
        self
    }
}

/// What a failed request to the store means to a runner.
fn from_store(error: StoreError) -> SourceError {
    match error {
        // A task that was forgotten, or that ended, is not this runner's any more.
        StoreError::Fenced | StoreError::Finished(_) | StoreError::NotFound { .. } => SourceError::Fenced,
        StoreError::Conflict { .. } | StoreError::TooNew { .. } => SourceError::Refused(error.to_string()),
        // A full disk, a lock, a restart of the database: all may pass. Also what looks corrupt: nothing is gained by
        // dropping a result because of it.
        _ => SourceError::Unavailable(error.to_string()),
    }
}

fn number<T: TryFrom<i64> + Default>(number: impl Into<i64>) -> T {
    T::try_from(number.into()).unwrap_or_default()
}

#[async_trait]
impl Source for QueueSource {
    async fn installation(&self) -> Result<Installation> {
        self.store.installation().await.map_err(from_store)
    }

    async fn acquire_worker(&self, spec: WorkerSpec) -> Result<Acquired> {
        self.workers.acquire_worker(spec, self.owner).await.map_err(from_store)
    }

    async fn release_worker(&self, id: &WorkerId, fence: Fence) -> Result<()> {
        self.workers.release_worker(self.owner, id, fence).await.map_err(from_store)
    }

    async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()> {
        self.workers.save_object_info(hash, json).await.map_err(from_store)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>> {
        self.store.claim(request).await.map_err(from_store)
    }

    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>> {
        self.store.adopt(request).await.map_err(from_store)
    }

    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>> {
        self.store.leases_for(self.owner, worker).await.map_err(from_store)
    }

    async fn beat(&self, request: BeatRequest) -> Result<BeatReply> {
        let reply = self.store.beat(request).await.map_err(from_store)?;
        for lease in &reply.lost {
            self.hub.close(lease.task);
        }
        Ok(reply)
    }

    async fn end(&self, lease: LeaseRef, mut ending: Ending) -> Result<EndReply> {
        ending.bound();
        let reply = self.store.end(self.owner, lease, ending).await.map_err(from_store)?;
        self.hub.close(lease.task);
        Ok(reply)
    }

    async fn give_back(&self, lease: LeaseRef, learnt: Option<Requirements>) -> Result<EndReply> {
        let reply = self.preflight.give_back(self.owner, lease, learnt).await.map_err(from_store)?;
        self.hub.close(lease.task);
        Ok(reply)
    }

    async fn harmed(&self, lease: LeaseRef, harm: Harm) -> Result<Harmed> {
        let holder = Some((self.owner, lease.fence));
        let harmed = self.store.note_harm(lease.task, holder, harm).await.map_err(from_store)?;
        if harmed.set_aside {
            self.hub.close(lease.task);
        }
        Ok(harmed)
    }

    async fn input(&self, _: LeaseRef, placement: &Placement) -> Result<ByteStream> {
        let key = FileKey::parse(&placement.key).map_err(from_files)?;
        let content = self.files.get(&key, None).await.map_err(from_files)?;
        Ok(content.stream.map_err(std::io::Error::other).boxed())
    }

    async fn deliver(
        &self,
        lease: LeaseRef,
        attempt: AttemptNo,
        file: NewFile,
        bytes: ByteStream,
    ) -> Result<Delivered> {
        let fence: u64 = number(lease.fence.0);
        let key = FileKey::output(lease.task.0, number(attempt), fence, number(file.n), &file.filename);
        let stored = self.files.put(&key, bytes, Some(self.largest_output)).await.map_err(from_files)?;
        Ok(Delivered { key: key.to_string(), size: stored.size, sha256: Sha256(stored.sha256.0) })
    }

    async fn discard(&self, lease: LeaseRef, attempt: AttemptNo) -> Result<()> {
        let fence: u64 = number(lease.fence.0);
        let folder = FileKey::outputs_of_attempt(lease.task.0, number(attempt), fence);
        self.files.delete_all(&folder).await.map(drop).map_err(from_files)
    }

    fn frame(&self, frame: Frame) {
        self.hub.publish(frame);
    }
}
