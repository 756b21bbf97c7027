//! What those do who run tasks: claims, leases, ends.

use std::fmt;

use async_trait::async_trait;
use remuda_core::transition::Ending;
use remuda_core::{
    Claim, Fence, Harm, Harmed, Installation, Lease, LeaseRef, OwnerId, Requirements, TaskId, WorkerId,
};

use crate::{AdoptRequest, BeatReply, BeatRequest, ClaimRequest, EndReply, Result};

/// What those do who run tasks.
#[async_trait]
pub trait RunnerStore: fmt::Debug + Send + Sync + 'static {
    /// Which installation this is, whose mark is on everything that it runs. Made when the store was made.
    async fn installation(&self) -> Result<Installation>;

    /// The next task for a worker, under a new attempt, lease and prompt id, all durable. Waits up to the request's
    /// `wait` for one. [`crate::Error::Fenced`] when the worker is not the caller's any more.
    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>>;

    /// Renews leases and workers, also those that had run out and that nobody took; then waits for news of them.
    async fn beat(&self, request: BeatRequest) -> Result<BeatReply>;

    /// An attempt ended. Only its owner can say so, and only with the current fence; the same report again gives the same
    /// answer.
    async fn end(&self, owner: OwnerId, lease: LeaseRef, ending: Ending) -> Result<EndReply>;

    /// A task goes back before ComfyUI began, without blame. `learnt`: what it needs and the worker lacks,
    /// in addition to what was known. Only its owner can give it back.
    async fn give_back(
        &self,
        owner: OwnerId,
        lease: LeaseRef,
        learnt: Option<Requirements>,
    ) -> Result<EndReply>;

    /// Takes over the attempts under way on a worker that the caller holds: those of its own from before a restart,
    /// and those of others whose leases ran out. Not all at once, if their inputs are large: whoever wants all of them asks
    /// again, with those that came among the known ones, until none comes. What was not taken yet stays as it is.
    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>>;

    /// Our own work on a task's graph brought a process down or to a standstill. The incident is counted, once however often
    /// it is told; with the second one the task fails with the class `harmful`, wherever it is, and its lease goes. An ended
    /// task stays as it is. With an owner and a fence only the holder of that lease is heard, others are
    /// [`crate::Error::Fenced`]. A task that is not there counts nothing.
    async fn note_harm(&self, task: TaskId, holder: Option<(OwnerId, Fence)>, harm: Harm) -> Result<Harmed>;

    /// All leases on a worker: the prompts of ours that may be in its queue.
    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>>;

    /// The same for a process that holds the worker. [`crate::Error::Fenced`] when `owner` does not.
    async fn leases_for(&self, owner: OwnerId, worker: &WorkerId) -> Result<Vec<Lease>>;
}
