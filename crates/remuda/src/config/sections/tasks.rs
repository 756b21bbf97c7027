//! `[tasks]`: what holds for a task that does not say otherwise, and how tasks are run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use remuda_core::Tenant;
use remuda_core::quota::Quota;

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
    help: "How long a task may render, unless it sets its own limit",
    ..Setting::BASE
};

static MAX_RETRIES: Setting = Setting {
    name: "tasks.max_retries",
    env: &["REMUDA_MAX_RETRIES"],
    flags: &[flag("max-retries", "N", SERVE)],
    default: "3",
    shape: Shape::Number,
    range: (0, 100),
    help: "How often a failed task is retried, unless it sets its own limit",
    ..Setting::BASE
};

static PRIORITY: Setting = Setting {
    name: "tasks.priority",
    env: &["REMUDA_PRIORITY"],
    flags: &[flag("priority", "0-9", SERVE)],
    default: "5",
    shape: Shape::Number,
    range: (0, 9),
    help: "Priority of tasks that do not set one; higher runs sooner",
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
    help: "How long a stop waits for running tasks before it leaves them to be adopted, or gives them back to LittleHorse",
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

static MAX_OUTPUT_TOTAL: Setting = Setting {
    name: "tasks.max_output_total",
    env: &["REMUDA_MAX_OUTPUT_TOTAL"],
    default: "1TiB",
    shape: Shape::Size,
    range: (1, 1 << 50),
    help: "How large all output files of one task may be together when a sidecar delivers them",
    ..Setting::BASE
};

static MAX_RESULT_SIZE: Setting = Setting {
    name: "tasks.max_result_size",
    env: &["REMUDA_MAX_RESULT_SIZE"],
    default: "64MiB",
    shape: Shape::Size,
    range: (1 << 10, 1 << 30),
    help: "Longest JSON that the nodes of one task may report besides files; a task that reports more fails",
    ..Setting::BASE
};

static MAX_LANES: Setting = Setting {
    name: "tasks.max_lanes",
    env: &["REMUDA_MAX_LANES"],
    default: "1000",
    shape: Shape::Number,
    range: (1, 1_000_000),
    help: "How many different sets of labels, nodes and models the unfinished tasks of one tenant may ask for",
    ..Setting::BASE
};

static MAX_WAITING: Setting = Setting {
    name: "tasks.max_waiting",
    env: &["REMUDA_MAX_WAITING"],
    default: "10000000",
    shape: Shape::Number,
    range: (0, 1_000_000_000),
    help: "How many tasks of one tenant may wait; further ones are refused; 0 means no limit",
    ..Setting::BASE
};

static MAX_STORED: Setting = Setting {
    name: "tasks.max_stored",
    env: &["REMUDA_MAX_STORED"],
    default: "10TiB",
    shape: Shape::Size,
    range: (0, 1 << 60),
    help: "How many bytes the tasks of one tenant, their results and its uploads may take; beyond that nothing more is accepted; 0 means no limit",
    ..Setting::BASE
};

static TENANT_LABELS: Setting = Setting {
    name: "tasks.tenant_labels",
    env: &["REMUDA_TENANT_LABELS"],
    flags: &[flag("tenant-label", "TENANT=LABEL", SERVE)],
    shape: Shape::List,
    help: "Label that a worker must have to run a tenant's tasks, such as alice=pool=a; binds the tenant to those workers",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[
    &TIMEOUT,
    &MAX_RETRIES,
    &PRIORITY,
    &LEASE,
    &DRAIN,
    &MAX_OUTPUT_SIZE,
    &MAX_OUTPUT_TOTAL,
    &MAX_RESULT_SIZE,
    &MAX_LANES,
    &MAX_WAITING,
    &MAX_STORED,
    &TENANT_LABELS,
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
    /// Bytes of a task's output files together on a worker elsewhere: `REMUDA_MAX_OUTPUT_TOTAL`, 1 TiB.
    pub(crate) max_output_total: u64,
    /// Longest report of a task's nodes in bytes: `REMUDA_MAX_RESULT_SIZE`, 64 MiB.
    pub(crate) max_result_size: u64,
    /// Different requirements of a tenant's unfinished tasks: `REMUDA_MAX_LANES`, 1,000.
    pub(crate) max_lanes: u64,
    /// Tasks of a tenant that wait: `REMUDA_MAX_WAITING`, 10,000,000; and bytes of its tasks and uploads: `REMUDA_MAX_STORED`,
    /// 10 TiB.
    pub(crate) quota: Quota,
    /// Labels that all tasks of a tenant require: `REMUDA_TENANT_LABELS`, none.
    pub(crate) tenant_labels: BTreeMap<Tenant, BTreeSet<String>>,
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
            max_output_total: from.get::<Size, _>(&MAX_OUTPUT_TOTAL)?.0,
            max_result_size: from.get::<Size, _>(&MAX_RESULT_SIZE)?.0,
            max_lanes: from.get(&MAX_LANES)?,
            quota: Quota { waiting: from.get(&MAX_WAITING)?, bytes: from.get::<Size, _>(&MAX_STORED)?.0 },
            tenant_labels: tenant_labels(&from.list(&TENANT_LABELS)?)
                .map_err(|reason| from.blame(&TENANT_LABELS, reason))?,
        })
    }
}

/// `TENANT=LABEL`, where a label may have an equals sign of its own.
fn tenant_labels(given: &[String]) -> Result<BTreeMap<Tenant, BTreeSet<String>>, String> {
    let mut all: BTreeMap<Tenant, BTreeSet<String>> = BTreeMap::new();
    for one in given {
        let (tenant, label) = one.split_once('=').unwrap_or((one, ""));
        if label.trim().is_empty() {
            return Err(format!("`{one}` is not TENANT=LABEL, as in alice=pool=a"));
        }
        let tenant = Tenant::new(tenant.trim()).map_err(|error| format!("`{one}`: {error}"))?;
        all.entry(tenant).or_default().insert(label.trim().to_owned());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_bound_to_labels_that_may_have_values() {
        let given = ["alice=pool=a", "alice=fast", "bob=pool=b"].map(str::to_owned);
        let read = tenant_labels(&given).unwrap();
        let labels = |name: &str| read[&Tenant::new(name).unwrap()].iter().cloned().collect::<Vec<_>>();
        assert_eq!(
            (labels("alice"), labels("bob")),
            (vec!["fast".to_owned(), "pool=a".to_owned()], vec!["pool=b".to_owned()])
        );
        for wrong in ["alice", "alice=", "=pool=a", "=", ""] {
            assert!(tenant_labels(&[wrong.to_owned()]).is_err(), "{wrong:?}");
        }
    }
}
