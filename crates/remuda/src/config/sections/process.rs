//! `[process]`: how a server or worker keeps itself going.

use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Setting, Shape};
use crate::config::values::Span;

static WATCHDOG: Setting = Setting {
    name: "process.watchdog",
    env: &["REMUDA_WATCHDOG"],
    default: "10s",
    shape: Shape::Duration,
    range: (1, 3600),
    help: "How long the process may stand still before /live says 503, and how much processor time work on one graph may take \
           before it is given up (six times as long on the clock); time in which the process did not run is not counted",
    ..Setting::BASE
};

static POOL_THREADS: Setting = Setting {
    name: "process.pool_threads",
    env: &["REMUDA_POOL_THREADS"],
    shape: Shape::Number,
    range: (1, 64),
    help: "Threads for work on large graphs and requests; not set: one for each core, from 2 to 4",
    ..Setting::BASE
};

static POOL_QUEUE: Setting = Setting {
    name: "process.pool_queue",
    env: &["REMUDA_POOL_QUEUE"],
    default: "256",
    shape: Shape::Number,
    range: (4, 65_536),
    help: "How many large requests may wait for those threads, a quarter of them from one tenant; further ones get 503 or 429",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[&WATCHDOG, &POOL_THREADS, &POOL_QUEUE];

/// How a process keeps itself going.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    /// The longest standstill: `REMUDA_WATCHDOG`, 10 seconds.
    pub(crate) watchdog: Duration,
    /// Threads for long computations: `REMUDA_POOL_THREADS`, as many as there are cores, from 2 to 4.
    pub(crate) pool_threads: Option<usize>,
    /// What may wait for them: `REMUDA_POOL_QUEUE`, 256.
    pub(crate) pool_queue: usize,
}

impl Process {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        Ok(Self {
            watchdog: from.get::<Span, _>(&WATCHDOG)?.0,
            pool_threads: from.optional(&POOL_THREADS)?,
            pool_queue: from.get(&POOL_QUEUE)?,
        })
    }
}
