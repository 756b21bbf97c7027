//! All times follow from the lease.

use std::time::Duration;

use remuda_core::OwnerId;
use remuda_runner::{HerdOptions, ResultLimits};
use remuda_store::Options;

use crate::config::Settings;

/// How runners behave under a lease of this length.
pub(crate) fn herd_options(
    owner: OwnerId,
    gateway: Option<String>,
    lease: Duration,
    settings: &Settings,
) -> HerdOptions {
    let mut options = HerdOptions::new(owner);
    options.results = result_limits(settings);
    options.gateway = gateway;
    let timing = &mut options.timing;
    // The usual times belong to the usual lease of 30 s; a shorter one shortens what must happen within it.
    timing.beat = timing.beat.min(lease * 3 / 10);
    timing.beat_retry = timing.beat_retry.min(lease / 20);
    timing.stale = timing.stale.min(lease * 2 / 3);
    timing.source = timing.source.min(lease);
    timing.retry = timing.retry.min(lease / 5);
    options
}

/// How much a task may leave.
pub(crate) fn result_limits(settings: &Settings) -> ResultLimits {
    let bytes = usize::try_from(settings.tasks.max_result_size).unwrap_or(usize::MAX);
    ResultLimits { files: settings.graph.output_files, bytes }
}

/// How a store behaves under a lease of this length.
pub(crate) fn store_options(owner: OwnerId, lease: Duration) -> Options {
    let mut options = Options::new(owner);
    options.policy.lease = lease;
    options.policy.adoption = lease / 2;
    options.settle = options.policy.lease + options.policy.adoption;
    options
}
