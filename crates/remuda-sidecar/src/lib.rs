//! What a runner elsewhere and a gateway say to each other: `/api/v1/worker/…`.
//!
//! Every request carries a key with the scope `worker` and, in [`OWNER`], the process that asks. Bodies are JSON, except
//! files, which are bytes, and live frames, see [`frames`]. The records of the core (tasks, leases, reports, endings)
//! are part of the protocol as they are: a field may be added to them with a default, none may be removed or change
//! its meaning within `v1`. Readers ignore what they do not know, so gateways are upgraded first.
//!
//! ```text
//! GET    /api/v1/worker/installation                    → Installation
//! POST   /api/v1/worker/acquire          Acquire        → Acquired
//! POST   /api/v1/worker/release          Release        → 204
//! PUT    /api/v1/worker/object-info/{sha256}   JSON     → 204
//! POST   /api/v1/worker/claim            Claim          → Claimed; 204 when nothing came in time
//! POST   /api/v1/worker/adopt            Adopt          → Adopted
//! GET    /api/v1/worker/leases           ?worker        → Leases
//! POST   /api/v1/worker/beat             Beat           → BeatReply
//! POST   /api/v1/worker/end              End            → EndReply
//! POST   /api/v1/worker/give-back        GiveBack       → EndReply
//! POST   /api/v1/worker/harm             Harm           → remuda_core::Harmed
//! GET    /api/v1/worker/tasks/{id}/input ?fence&key     → bytes
//! PUT    /api/v1/worker/tasks/{id}/outputs/{n}  ?fence&attempt&filename&size  bytes → Delivered
//! DELETE /api/v1/worker/tasks/{id}/outputs      ?fence&attempt                → 204
//! POST   /api/v1/worker/frames           frames         → 204
//! ```
//!
//! An error is `{"error": "…"}`. 409 with the code [`FENCED`] means that the lease, or the worker, is somebody else's;
//! any other 4xx is a refusal that will not change; everything else may be tried again.

pub mod frames;

use std::sync::Arc;
use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{
    AttemptNo, Capabilities, Fence, Lease, LeaseRef, Requirements, Sha256, Worker, WorkerId, WorkerSpec,
};
use remuda_store::{LeaseBeat, WorkerBeat};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use remuda_store::{BeatReply, EndReply};

/// The header that names the process that asks: an owner id.
pub const OWNER: &str = "remuda-owner";

/// The code of the error that means: the lease, or the worker, is somebody else's by now.
pub const FENCED: &str = "fenced";

/// Codes of errors that mean: the body did not arrive whole.
pub const BROKEN: [&str; 2] = ["upload_broken", "body_broken"];

/// No request waits longer than this for something to happen, so that no proxy between the two loses patience.
pub const LONGEST_WAIT: Duration = Duration::from_secs(25);

/// How much a worker may say of itself in one claim.
pub const LARGEST_REQUEST: usize = 32 << 20;

/// How much it may say in any other request, such as the report at the end of an attempt.
pub const LARGEST_REPORT: usize = 8 << 20;

/// The largest `object_info` that is taken.
pub const LARGEST_OBJECT_INFO: usize = 64 << 20;

/// Which installation answers. Its cluster key is not for workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installation {
    /// Its id.
    pub id: Uuid,
    /// How long a lease lasts that is not renewed, in milliseconds: a worker must beat more often.
    #[serde(default)]
    pub lease_ms: Option<u64>,
}

/// Registers a worker and takes its lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Acquire {
    /// What it is.
    pub spec: WorkerSpec,
}

/// Whether the worker can be driven.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Acquired {
    /// Whether it is the caller's, under the fence in it.
    pub yours: bool,
    /// The worker, and who holds it.
    pub worker: Worker,
}

/// Lets go of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Which.
    pub worker: WorkerId,
    /// The number under which it is held.
    pub fence: Fence,
}

/// Asks for a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The worker that it is for …
    pub worker: WorkerId,
    /// … held under this number.
    pub worker_fence: Fence,
    /// What the worker can do.
    pub capabilities: Arc<Capabilities>,
    /// The affinities of the models it has loaded. A server keeps the first 64.
    #[serde(default)]
    pub loaded: Vec<i64>,
    /// The worker is busy.
    #[serde(default)]
    pub ahead: bool,
    /// How long to wait for one, at most [`LONGEST_WAIT`].
    #[serde(default)]
    pub wait_ms: u64,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claimed {
    /// With its input and the lease on it.
    pub claim: remuda_core::Claim,
}

/// Takes over what runs on a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Adopt {
    /// The worker …
    pub worker: WorkerId,
    /// … held under this number.
    pub worker_fence: Fence,
    /// What the caller already follows.
    #[serde(default)]
    pub known: Vec<LeaseRef>,
}

/// What was taken over. Not all of it, if it is large: until none comes there may be more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Adopted {
    /// Tasks with their inputs and leases.
    pub claims: Vec<remuda_core::Claim>,
}

/// All leases on a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Leases {
    /// Whoever holds them.
    pub leases: Vec<Lease>,
}

/// Which worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfWorker {
    /// Its name.
    pub worker: WorkerId,
}

/// Renews leases and workers, and waits for news of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// The leases.
    #[serde(default)]
    pub leases: Vec<LeaseBeat>,
    /// The workers.
    #[serde(default)]
    pub workers: Vec<WorkerBeat>,
    /// How long to wait for news, at most [`LONGEST_WAIT`].
    #[serde(default)]
    pub wait_ms: u64,
}

/// An attempt ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Under which lease.
    pub lease: LeaseRef,
    /// How.
    pub ending: Ending,
}

/// A task goes back before ComfyUI began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GiveBack {
    /// Under which lease.
    pub lease: LeaseRef,
    /// What it needs and the worker lacks.
    #[serde(default)]
    pub learnt: Option<Requirements>,
}

/// Work on a task's graph brought the process down or to a standstill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Harm {
    /// Under which lease. A process after a restart has adopted it first.
    pub lease: LeaseRef,
    /// What happened.
    pub harm: remuda_core::Harm,
}

/// Which file to read, and by what right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputQuery {
    /// Of the lease on the task.
    pub fence: Fence,
    /// Where the file is: the key of one of the task's placements.
    pub key: String,
}

/// Which file comes, and by what right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputQuery {
    /// Of the lease on the task.
    pub fence: Fence,
    /// The attempt that made it.
    pub attempt: AttemptNo,
    /// Its name at ComfyUI, without folders.
    pub filename: String,
    /// How large it is, if that is known: what is too large is refused before it comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Which files are not used, and by what right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptQuery {
    /// Of the lease under which they came.
    pub fence: Fence,
    /// The attempt that made them.
    pub attempt: AttemptNo,
}

/// A file has arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// Where it is in the file store.
    pub key: String,
    /// In bytes.
    pub size: u64,
    /// Of the bytes.
    pub sha256: Sha256,
}

/// What went wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// For people.
    #[serde(default)]
    pub error: String,
    /// For programs: [`FENCED`], or something else.
    #[serde(default)]
    pub code: Option<String>,
}

/// A wait as it is written in requests.
pub fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.min(LONGEST_WAIT).as_millis()).unwrap_or(u64::MAX)
}

/// A wait as it is granted.
pub fn wait(millis: u64) -> Duration {
    Duration::from_millis(millis).min(LONGEST_WAIT)
}
