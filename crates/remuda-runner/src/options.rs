//! How a herd behaves.

use std::time::Duration;

use comfyui::{Client, SessionOptions};
use remuda_core::{OwnerId, WorkerSpec};
use remuda_pool::{HarmBook, Pool};

use crate::QuarantineRules;

/// Everything that all runners of a process share.
#[derive(Debug, Clone)]
pub struct HerdOptions {
    /// The process: the same after a restart, so that it finds its own leases again.
    pub owner: OwnerId,
    /// Where live frames of this process can be had: the base URL of a gateway.
    pub gateway: Option<String>,
    /// How long things take.
    pub timing: Timing,
    /// When a worker rests.
    pub quarantine: QuarantineRules,
    /// Where large graphs are worked on.
    pub pool: Pool,
    /// What this process knows of tasks that brought it down, and nobody has counted yet.
    pub harm: HarmBook,
    /// How much a task may leave.
    pub results: ResultLimits,
}

/// How much a task may leave. What leaves more fails, and is not rendered again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultLimits {
    /// Files.
    pub files: usize,
    /// Bytes of JSON that its nodes report, beside the files.
    pub bytes: usize,
}

impl Default for ResultLimits {
    fn default() -> Self {
        Self { files: 20_000, bytes: 64 << 20 }
    }
}

impl HerdOptions {
    /// The defaults, for this process.
    pub fn new(owner: OwnerId) -> Self {
        Self {
            owner,
            gateway: None,
            timing: Timing::default(),
            quarantine: QuarantineRules::default(),
            pool: Pool::default(),
            harm: HarmBook::default(),
            results: ResultLimits::default(),
        }
    }
}

/// How long things take.
#[derive(Debug, Clone)]
pub struct Timing {
    /// How long a beat waits for news. With the time between two, it must stay well below the lease.
    pub beat: Duration,
    /// The pause after a beat that failed.
    pub beat_retry: Duration,
    /// Without a renewal for this long, counted from the start of the request, nothing new is begun and nothing is stopped
    /// at ComfyUI: the lease may be somebody else's. Below the lease of the store.
    pub stale: Duration,
    /// How long a claim waits for a task.
    pub claim: Duration,
    /// How long any other request to the source may take.
    pub source: Duration,
    /// A file on its way to the source that does not move for this long is sent again.
    pub transfer: Duration,
    /// The pause before a request to the source is repeated, and between tries to get hold of a worker.
    pub retry: Duration,
    /// The pause between two questions whether ComfyUI answers.
    pub probe: Duration,
    /// The pause between two sweeps.
    pub sweep: Duration,
    /// The pause between the two looks that show a prompt to be absent.
    pub second_look: Duration,
    /// A ComfyUI that cannot be reached for this long has lost what ran there. Also in [`WorkerConfig::session`].
    pub unreachable: Duration,
    /// How long one try to stop a prompt waits for it to stop.
    pub stopping: Duration,
    /// A cancelled prompt that does not stop for this long is left to the sweep.
    pub stop_patience: Duration,
    /// How long a result that cannot be stored is kept.
    pub delivery_patience: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(9),
            beat_retry: Duration::from_secs(1),
            stale: Duration::from_secs(20),
            claim: Duration::from_secs(20),
            source: Duration::from_secs(30),
            transfer: Duration::from_secs(120),
            retry: Duration::from_secs(3),
            probe: Duration::from_secs(5),
            sweep: Duration::from_secs(10),
            second_look: Duration::from_secs(1),
            unreachable: Duration::from_secs(60),
            stopping: Duration::from_secs(10),
            stop_patience: Duration::from_secs(600),
            delivery_patience: Duration::from_secs(600),
        }
    }
}

/// A worker to drive.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// What it is known as; see [`crate::worker_id_for`].
    pub spec: WorkerSpec,
    /// How to reach it.
    pub client: Client,
    /// How its prompts are followed.
    pub session: SessionOptions,
}

impl WorkerConfig {
    /// With the defaults of the client. A prompt of which nothing is heard for six hours counts as stuck; the task's own
    /// timeout mostly ends it long before.
    pub fn new(spec: WorkerSpec, client: Client) -> Self {
        let session =
            SessionOptions { stalled_after: Duration::from_secs(6 * 3600), ..SessionOptions::default() };
        Self { spec, client, session }
    }
}
