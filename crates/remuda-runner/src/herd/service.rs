//! The handle of a herd.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_core::WorkerId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{HerdStatus, LeaseState, Shared, WorkerState, beat};
use crate::board::Board;
use crate::counters::Counters;
use crate::runner::{Purpose, Runner};
use crate::source::Source;
use crate::{HerdOptions, WorkerConfig};

/// All runners of one process. Cheap to clone.
///
/// When the last handle is dropped everything ends at once, and the leases stay as they are: as if the process were
/// killed. [`Herd::stop`] ends it well.
#[derive(Clone)]
pub struct Herd {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    runners: Mutex<BTreeMap<WorkerId, Handle>>,
    /// Runners and the beat loop.
    tasks: TaskTracker,
    stop: CancellationToken,
    stop_beat: CancellationToken,
}

/// One runner from outside.
struct Handle {
    purpose: Purpose,
    stop: CancellationToken,
    state: watch::Receiver<WorkerState>,
}

impl fmt::Debug for Herd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Herd").field("owner", &self.inner.shared.options.owner).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.abandon.cancel();
        self.stop_beat.cancel();
    }
}

impl Herd {
    /// Starts a herd without workers. To be called within a Tokio runtime.
    pub fn start(source: Arc<dyn Source>, options: HerdOptions) -> Self {
        let shared = Arc::new(Shared {
            source,
            board: Arc::new(Board::new(options.timing.stale)),
            counters: Arc::new(Counters::default()),
            options,
            descriptions: Mutex::default(),
            abandon: CancellationToken::new(),
        });
        let inner = Inner {
            shared: Arc::clone(&shared),
            runners: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            stop_beat: CancellationToken::new(),
        };
        inner.tasks.spawn(beat::pulse(Arc::clone(&shared), inner.stop_beat.clone()));
        inner.tasks.spawn(beat::run(shared, inner.stop_beat.clone()));
        Self { inner: Arc::new(inner) }
    }

    fn runners(&self) -> MutexGuard<'_, BTreeMap<WorkerId, Handle>> {
        self.inner.runners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives one more worker, as soon as it can be had. One that is driven already is left alone: `false`.
    pub fn add(&self, worker: WorkerConfig) -> bool {
        self.run(worker, Purpose::Drive)
    }

    /// Ends what this process left under way on a worker that it is not to drive any more, and lets go of it. It gets no
    /// new tasks, and [`Herd::status`] does not show it. Without it, tasks on a worker that was taken out of the settings would wait for it for ever.
    pub fn retire(&self, worker: WorkerConfig) -> bool {
        self.run(worker, Purpose::Retire)
    }

    fn run(&self, worker: WorkerConfig, purpose: Purpose) -> bool {
        let mut runners = self.runners();
        let id = worker.spec.id.clone();
        if self.inner.stop.is_cancelled() || runners.get(&id).is_some_and(|handle| !handle.is_over()) {
            return false;
        }
        let stop = self.inner.stop.child_token();
        let (runner, state) = Runner::new(Arc::clone(&self.inner.shared), worker, purpose, stop.clone());
        runners.insert(id, Handle { purpose, stop, state });
        self.inner.tasks.spawn(runner.run());
        true
    }

    /// Stops to drive one worker: as [`Herd::stop`] does, but as long as its tasks take. `false` when there is none.
    pub fn remove(&self, worker: &WorkerId) -> bool {
        let runners = self.runners();
        let handle = runners.get(worker).filter(|handle| !handle.is_over());
        handle.map(|handle| handle.stop.cancel()).is_some()
    }

    /// How everything is.
    pub fn status(&self) -> HerdStatus {
        let mut runners = self.runners();
        runners.retain(|_, handle| !handle.is_over());
        let driven = runners.values().filter(|handle| handle.purpose == Purpose::Drive);
        let workers = driven.map(|handle| {
            let mut state = handle.state.borrow().clone();
            let phases = self.inner.shared.board.phases_on(&state.spec.id);
            let shown =
                phases.into_iter().map(|(lease, phase, progress)| LeaseState { lease, phase, progress });
            state.leases = shown.collect();
            state
        });
        HerdStatus { workers: workers.collect(), counters: self.inner.shared.counters.snapshot() }
    }

    /// What it counts.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.inner.shared.counters)
    }

    /// Takes no new work, gives back what ComfyUI has not begun, waits for the rest at most `drain`, and then leaves the
    /// leases for adoption. Nothing is cancelled.
    pub async fn stop(&self, drain: Duration) {
        let inner = &self.inner;
        inner.stop.cancel();
        inner.tasks.close();
        let board = &inner.shared.board;
        let drained = async {
            let mut states: Vec<_> = self.runners().values().map(|handle| handle.state.clone()).collect();
            for state in &mut states {
                // A runner that is over has dropped its end.
                while state.changed().await.is_ok() {}
            }
        };
        if tokio::time::timeout(drain, drained).await.is_err() {
            tracing::info!(
                leases = board.leases(),
                "not all tasks ended in time; they are left to be adopted"
            );
            // The leases begin anew, so that whoever comes next has all the time there is.
            if let Err(error) = beat::beat(&inner.shared, Duration::ZERO).await {
                tracing::warn!(%error, "the last beat failed");
            }
        }
        inner.shared.abandon.cancel();
        inner.stop_beat.cancel();
        inner.tasks.wait().await;
    }
}

impl Handle {
    fn is_over(&self) -> bool {
        self.state.has_changed().is_err()
    }
}
