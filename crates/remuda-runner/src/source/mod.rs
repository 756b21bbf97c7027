//! Where tasks are claimed from and reported to.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use remuda_core::transition::Ending;
use remuda_core::{
    AttemptNo, Claim, Fence, Harm, Harmed, Installation, Lease, LeaseRef, Placement, Requirements, Sha256,
    WorkerId, WorkerSpec,
};
use remuda_store::{Acquired, AdoptRequest, BeatReply, BeatRequest, ClaimRequest, EndReply};

pub mod foreign;
mod gateway;
mod queue;

pub use gateway::GatewaySource;
pub use queue::QueueSource;

use remuda_frames::Frame;

/// Bytes on their way.
pub type ByteStream = BoxStream<'static, Result<Bytes, std::io::Error>>;

/// A result of a source.
pub type Result<T, E = SourceError> = std::result::Result<T, E>;

/// Why a source did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The lease, or the worker, is somebody else's by now: stop, and touch nothing at ComfyUI.
    #[error("the lease is held by somebody else by now")]
    Fenced,
    /// It does not answer, or not well. Whether the last write was done is not known; it may be repeated.
    #[error("the source does not answer: {0}")]
    Unavailable(String),
    /// It refuses, and will again: a wrong key, a file that is too large, a file that is not there.
    #[error("{0}")]
    Refused(String),
}

/// What a failed request to a file store means to a runner.
fn from_files(error: remuda_files::Error) -> SourceError {
    use remuda_files::Error;
    match error {
        // The stream from ComfyUI broke, or the file store is away or full.
        Error::Source(_) | Error::Unavailable { .. } | Error::Full { .. } | Error::Other { .. } => {
            SourceError::Unavailable(error.to_string())
        }
        _ => SourceError::Refused(error.to_string()),
    }
}

/// A file that a task left, on its way to the file store.
#[derive(Debug, Clone, PartialEq)]
pub struct NewFile {
    /// Its number within the result, from 0.
    pub n: i32,
    /// Its name at ComfyUI, without folders.
    pub filename: String,
    /// How large it is, if ComfyUI said so.
    pub size: Option<u64>,
}

/// A file that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Where it is in the file store.
    pub key: String,
    /// In bytes.
    pub size: u64,
    /// Of the bytes.
    pub sha256: Sha256,
}

/// Where tasks are claimed from and reported to: what a runner knows of the rest of the world.
///
/// The meaning of each method is that of [`remuda_store::Store`]; every write may be repeated as it was.
#[async_trait]
pub trait Source: fmt::Debug + Send + Sync + 'static {
    /// Which installation the tasks belong to: part of the marker on every prompt.
    async fn installation(&self) -> Result<Installation>;
    /// Registers a worker and takes its lease.
    async fn acquire_worker(&self, spec: WorkerSpec) -> Result<Acquired>;
    /// Lets go of a worker.
    async fn release_worker(&self, id: &WorkerId, fence: Fence) -> Result<()>;
    /// Keeps a worker's `object_info`, for pre-flight checks.
    async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()>;
    /// The next task for a worker.
    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>>;
    /// Takes over the attempts under way on a worker. Some of them: until none comes there may be more.
    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>>;
    /// All leases on a worker.
    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>>;
    /// Renews leases and workers, and waits for news.
    async fn beat(&self, request: BeatRequest) -> Result<BeatReply>;
    /// An attempt ended.
    async fn end(&self, lease: LeaseRef, ending: Ending) -> Result<EndReply>;
    /// A task goes back before ComfyUI began.
    async fn give_back(&self, lease: LeaseRef, learnt: Option<Requirements>) -> Result<EndReply>;

    /// Our own work on the task's graph brought this process down or to a standstill. A source that keeps no count says zero;
    /// then the process keeps it itself.
    async fn harmed(&self, _lease: LeaseRef, _harm: Harm) -> Result<Harmed> {
        Ok(Harmed { count: 0, set_aside: false })
    }

    /// The bytes of a file that must be at the worker first.
    async fn input(&self, lease: LeaseRef, placement: &Placement) -> Result<ByteStream>;
    /// Stores a file of an attempt. It becomes visible by `end` only.
    async fn deliver(
        &self,
        lease: LeaseRef,
        attempt: AttemptNo,
        file: NewFile,
        bytes: ByteStream,
    ) -> Result<Delivered>;
    /// Removes all files of an attempt: its result is not used.
    async fn discard(&self, lease: LeaseRef, attempt: AttemptNo) -> Result<()>;

    /// What is different about the tasks of this source.
    fn manners(&self) -> Manners {
        Manners::default()
    }

    /// ComfyUI has taken it. Best effort, as frames are.
    fn sent(&self, _lease: LeaseRef) {}

    /// How many prompts run or wait before it at ComfyUI. Best effort, as frames are.
    fn queued(&self, _lease: LeaseRef, _ahead: usize) {}

    /// Passes a live frame on. Best effort: never waits, and may drop it.
    fn frame(&self, frame: Frame);
}

/// How the tasks of a source are treated at ComfyUI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manners {
    /// File name prefixes are put into a folder of the task. Not where the paths of outputs are somebody's contract.
    pub own_folder: bool,
    /// Outputs are fetched and delivered. Otherwise they are only named: keys are empty, sizes and hashes nothing.
    pub collect: bool,
    /// The history entry is deleted after the report. Not where a later delivery of the same work looks for it.
    pub forget: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Self { own_folder: true, collect: true, forget: true }
    }
}
