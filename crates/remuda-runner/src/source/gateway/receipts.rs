//! Which claims have arrived.
//!
//! The answer to a claim can get lost after the gateway made it: then there is a lease of ours that nobody here knows
//! of. Its task would wait until the lease has run out and then count as lost. Instead, after every claim whose answer
//! did not come, the leases on the worker are compared with those that arrived, and the others are given back. That
//! is safe without a look at ComfyUI: nobody ever had the prompt id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::{Lease, OwnerId, TaskId, WorkerId};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Duration, Instant};
use uuid::Uuid;

use crate::wire;

/// Requests that bring leases share the worker; the comparison has it alone.
const ALL: u32 = 1 << 10;

/// A gateway that was not told that its caller is gone may still serve the claim until its wait is over.
const WINDOW: Duration = wire::LONGEST_WAIT.saturating_add(Duration::from_secs(10));

/// What has arrived, for every worker.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    workers: Mutex<HashMap<WorkerId, Arc<Receipt>>>,
}

impl Receipts {
    pub(super) fn of(&self, worker: &WorkerId) -> Arc<Receipt> {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(workers.entry(worker.clone()).or_default())
    }

    /// The worker is let go of.
    pub(super) fn forget(&self, worker: &WorkerId) {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).remove(worker);
    }

    /// A task is not ours any more.
    pub(super) fn over(&self, task: TaskId) {
        for receipt in self.workers.lock().unwrap_or_else(PoisonError::into_inner).values() {
            receipt.state().arrived.remove(&task);
        }
    }
}

/// What has arrived for one worker.
#[derive(Debug)]
pub(super) struct Receipt {
    turns: Semaphore,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The prompt ids under which tasks came.
    arrived: HashMap<TaskId, Uuid>,
    /// Until when there may be a claim that did not arrive.
    doubt: Option<Instant>,
    /// Since the worker was acquired, all that was under way on it has arrived. Before that, a lease that is not known
    /// here may well be rendering: it is for the runner to adopt.
    complete: bool,
}

impl Default for Receipt {
    fn default() -> Self {
        let permits = usize::try_from(ALL).unwrap_or(usize::MAX);
        Self { turns: Semaphore::new(permits), state: Mutex::default() }
    }
}

impl Receipt {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn for a request that brings leases. `None` only if the semaphore were closed, which nobody does.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// The worker alone, if there is a doubt to settle and no request under way that could bring a lease.
    pub(super) fn to_settle(&self) -> Option<SemaphorePermit<'_>> {
        let state = self.state();
        if state.doubt.is_none() || !state.complete {
            return None;
        }
        drop(state);
        self.turns.try_acquire_many(ALL).ok()
    }

    /// A claim is being sent: in doubt, unless its answer comes.
    pub(super) fn sending(&self) -> Sending<'_> {
        Sending { receipt: self, answered: false }
    }

    /// A lease has arrived.
    pub(super) fn arrived(&self, lease: &Lease) {
        self.state().arrived.insert(lease.task, lease.prompt_id);
    }

    /// Whether everything that is under way on the worker has arrived.
    pub(super) fn complete(&self, complete: bool) {
        self.state().complete = complete;
    }

    /// Leases that did not arrive.
    pub(super) fn missing(&self, leases: Vec<Lease>, owner: OwnerId) -> Vec<Lease> {
        let state = self.state();
        let unknown =
            |lease: &Lease| lease.owner == owner && state.arrived.get(&lease.task) != Some(&lease.prompt_id);
        leases.into_iter().filter(unknown).collect()
    }

    /// All that did not arrive by `asked` was given back.
    pub(super) fn settled(&self, asked: Instant) {
        let mut state = self.state();
        if state.doubt.is_some_and(|until| until <= asked) {
            state.doubt = None;
        }
    }
}

/// A claim on its way.
#[derive(Debug)]
pub(super) struct Sending<'a> {
    receipt: &'a Receipt,
    answered: bool,
}

impl Sending<'_> {
    /// It is known what became of it.
    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Sending<'_> {
    /// Also when the caller loses interest and drops its future.
    fn drop(&mut self) {
        if !self.answered {
            self.receipt.state().doubt = Some(Instant::now() + WINDOW);
        }
    }
}
