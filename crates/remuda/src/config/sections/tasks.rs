//! `[tasks]`: what holds for a task that does not say otherwise, and how tasks are run.

use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};
use crate::config::values::{Size, Span};

const SERVE: &[Program] = &[Program::Serve];

static TIMEOUT: Setting = Setting {
    name: "tasks.timeout",
    env: &["REMUDA_TASK_TIMEOUT"],
    flags: &[flag("task-timeout", "DURATION", SERVE)],
    default: "30m",
    shape: Shape::Duration,
    range: (1, 30 * 86_400),
    help: "How long a task may render, from the start of the render, unless it says otherwise",
    ..Setting::BASE
};

static MAX_RETRIES: Setting = Setting {
    name: "tasks.max_retries",
    env: &["REMUDA_MAX_RETRIES"],
    flags: &[flag("max-retries", "N", SERVE)],
    default: "3",
    shape: Shape::Number,
    range: (0, 100),
    help: "How often a failed task is tried again, unless it says otherwise",
    ..Setting::BASE
};

static PRIORITY: Setting = Setting {
    name: "tasks.priority",
    env: &["REMUDA_PRIORITY"],
    flags: &[flag("priority", "0-9", SERVE)],
    default: "5",
    shape: Shape::Number,
    range: (0, 9),
    help: "Priority of a task that names none; higher is sooner",
    ..Setting::BASE
};

static LEASE: Setting = Setting {
    name: "tasks.lease",
    env: &["REMUDA_LEASE"],
    flags: &[flag("lease", "DURATION", SERVE)],
    default: "30s",
    shape: Shape::Duration,
    range: (1, 3600),
    help: "How long a silent runner keeps its tasks before others may take them",
    ..Setting::BASE
};

static DRAIN: Setting = Setting {
    name: "tasks.drain",
    env: &["REMUDA_DRAIN"],
    flags: &[flag("drain", "DURATION", Program::RUNNING)],
    default: "25s",
    shape: Shape::Duration,
    range: (0, 86_400),
    help: "How long a stop waits for running tasks before leaving them to be adopted, or giving them back to LittleHorse",
    ..Setting::BASE
};

static MAX_OUTPUT_SIZE: Setting = Setting {
    name: "tasks.max_output_size",
    env: &["REMUDA_MAX_OUTPUT_SIZE"],
    flags: &[flag("max-output-size", "SIZE", Program::RUNNING)],
    default: "8GiB",
    shape: Shape::Size,
    range: (1, 1 << 50),
    help: "Largest single output file",
    ..Setting::BASE
};

static MAX_OUTPUT_FILES: Setting = Setting {
    name: "tasks.max_output_files",
    env: &["REMUDA_MAX_OUTPUT_FILES"],
    default: "10000",
    shape: Shape::Number,
    range: (1, 1_000_000),
    help: "How many output files one task may bring back from a worker elsewhere",
    ..Setting::BASE
};

static MAX_OUTPUT_TOTAL: Setting = Setting {
    name: "tasks.max_output_total",
    env: &["REMUDA_MAX_OUTPUT_TOTAL"],
    default: "1TiB",
    shape: Shape::Size,
    range: (1, 1 << 50),
    help: "How large those files may be together",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[
    &TIMEOUT,
    &MAX_RETRIES,
    &PRIORITY,
    &LEASE,
    &DRAIN,
    &MAX_OUTPUT_SIZE,
    &MAX_OUTPUT_FILES,
    &MAX_OUTPUT_TOTAL,
];

/// What holds for a task that does not say otherwise, and how tasks are run.
#[derive(Debug, Clone)]
pub(crate) struct Tasks {
    /// Longest render: `REMUDA_TASK_TIMEOUT`, 30 minutes.
    pub(crate) timeout: Duration,
    /// Tries after the first: `REMUDA_MAX_RETRIES`, 3.
    pub(crate) max_retries: u32,
    /// Priority, 0 to 9: `REMUDA_PRIORITY`, 5.
    pub(crate) priority: u8,
    /// Length of a lease: `REMUDA_LEASE`, 30 seconds.
    pub(crate) lease: Duration,
    /// Patience at a stop: `REMUDA_DRAIN`, 25 seconds.
    pub(crate) drain: Duration,
    /// Largest output file in bytes: `REMUDA_MAX_OUTPUT_SIZE`, 8 GiB.
    pub(crate) max_output_size: u64,
    /// Output files of a task on a worker elsewhere: `REMUDA_MAX_OUTPUT_FILES`, 10,000.
    pub(crate) max_output_files: u32,
    /// Their bytes together: `REMUDA_MAX_OUTPUT_TOTAL`, 1 TiB.
    pub(crate) max_output_total: u64,
}

impl Tasks {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        Ok(Self {
            timeout: from.get::<Span, _>(&TIMEOUT)?.0,
            max_retries: from.get(&MAX_RETRIES)?,
            priority: from.get(&PRIORITY)?,
            lease: from.get::<Span, _>(&LEASE)?.0,
            drain: from.get::<Span, _>(&DRAIN)?.0,
            max_output_size: from.get::<Size, _>(&MAX_OUTPUT_SIZE)?.0,
            max_output_files: from.get(&MAX_OUTPUT_FILES)?,
            max_output_total: from.get::<Size, _>(&MAX_OUTPUT_TOTAL)?.0,
        })
    }
}
