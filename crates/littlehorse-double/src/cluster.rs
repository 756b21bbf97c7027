//! What all hosts of a cluster know.
//!
//! One lock around everything, held for moments only. Each part has its subject: `defs` the TaskDefs, `workers` who polls
//! what, `dealing` which request gets which task, `ending` reports, timeouts and further attempts, `checkpoints` kept values.

mod checkpoints;
mod dealing;
mod defs;
mod ending;
mod timers;
mod workers;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tonic::Status;

use crate::clock::Clock;
use crate::fault::Faults;
use crate::journal::Journal;
use crate::options::Options;
use crate::proto::{TaskRunId, WfRunId};
use crate::run::RunState;

pub(crate) use dealing::StreamKey;

/// A task run, whichever attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunKey {
    tenant: String,
    id: String,
}

impl RunKey {
    pub(crate) fn new(tenant: &str, id: &TaskRunId) -> Self {
        let run = id.wf_run_id.as_ref().map(path).unwrap_or_default();
        Self { tenant: tenant.to_owned(), id: format!("{run}/{}", id.task_guid) }
    }
}

fn path(run: &WfRunId) -> String {
    match &run.parent_wf_run_id {
        Some(parent) => format!("{}_{}", path(parent), run.id),
        None => run.id.clone(),
    }
}

/// What all hosts know.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) journal: Journal,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    timer_set: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    defs: defs::Defs,
    workers: workers::Workers,
    dealing: dealing::Dealing,
    timers: timers::Timers,
    pub(crate) runs: HashMap<RunKey, RunState>,
    pub(crate) faults: Faults,
    /// Hosts that listen but do not work yet.
    pub(crate) unready: HashSet<usize>,
}

impl Cluster {
    pub(crate) fn new(options: Options) -> Arc<Self> {
        Arc::new(Self {
            options,
            clock: Clock::default(),
            journal: Journal::new(),
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            timer_set: Notify::new(),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes everybody who waits for something to change.
    pub(crate) fn tell(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Waits until something is so.
    pub(crate) async fn until<T>(&self, mut found: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let seen = found(&mut self.state());
            if let Some(it) = seen {
                return it;
            }
            // The sender lives as long as the cluster.
            let _ = changed.changed().await;
        }
    }
}

pub(crate) fn not_found() -> Status {
    Status::not_found("Requested object was not found.")
}
