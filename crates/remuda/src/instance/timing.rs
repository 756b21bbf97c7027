//! All times follow from the lease.

use std::time::Duration;

use remuda_core::OwnerId;
use remuda_runner::HerdOptions;
use remuda_store::Options;

/// How runners behave under a lease of this length.
pub(crate) fn herd_options(owner: OwnerId, gateway: Option<String>, lease: Duration) -> HerdOptions {
    let mut options = HerdOptions::new(owner);
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

/// How a store behaves under a lease of this length.
pub(crate) fn store_options(owner: OwnerId, lease: Duration) -> Options {
    let mut options = Options::new(owner);
    options.policy.lease = lease;
    options.policy.adoption = lease / 2;
    options.settle = options.policy.lease + options.policy.adoption;
    options
}
