//! The time in which this process ran, and whether its runtime turns.
//!
//! A process that was stopped with SIGSTOP, or whose machine slept, did nothing wrong. Only a thread of the process
//! itself can tell: [`crate::Watchdog`] counts its own ticks, and a tick that came late counts as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The time in which the process ran, as the watchdog counts it. Without a watchdog it stands still.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// How long the process ran, since the watchdog began to count.
    pub fn ran(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// Counts a tick: what passed since the one before, but no more than twice what was planned.
    pub(crate) fn tick(&self, passed: Duration, planned: Duration) {
        let counted = passed.min(planned * 2).as_millis();
        self.0.fetch_add(u64::try_from(counted).unwrap_or(0), Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Beats {
    clock: Clock,
    last_ms: AtomicU64,
    limit_ms: AtomicU64,
    stopped: AtomicBool,
}

/// Whether a runtime turns: a task on it beats, others look.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<Beats>);

/// The pause between two beats. Short against every limit, long against everything that costs.
const BEAT: Duration = Duration::from_millis(100);

impl Pulse {
    pub(crate) fn new(clock: Clock, limit: Duration) -> Self {
        let limit_ms = AtomicU64::new(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        Self(Arc::new(Beats { clock, last_ms: AtomicU64::new(0), limit_ms, stopped: AtomicBool::new(false) }))
    }

    /// The runtime turns.
    pub fn beat(&self) {
        let now = u64::try_from(self.0.clock.ran().as_millis()).unwrap_or(0);
        self.0.last_ms.store(now, Ordering::Relaxed);
    }

    /// Beats for ever. To be spawned on the runtime that is watched, and dropped with it.
    pub async fn run(self) {
        let _stopped = StopOnDrop(&self);
        loop {
            self.beat();
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Whether anybody counts.
    pub fn is_watched(&self) -> bool {
        self.0.limit_ms.load(Ordering::Relaxed) > 0
    }

    /// For how long of the process's own time the runtime has not turned. Zero when nobody counts.
    pub fn silent(&self) -> Duration {
        if self.0.stopped.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        self.0.clock.ran().saturating_sub(Duration::from_millis(self.0.last_ms.load(Ordering::Relaxed)))
    }

    /// Whether the runtime turned within the limit of the watchdog.
    pub fn turns(&self) -> bool {
        let limit = self.0.limit_ms.load(Ordering::Relaxed);
        !self.is_watched() || self.silent() < Duration::from_millis(limit)
    }
}

struct StopOnDrop<'a>(&'a Pulse);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        // A runtime that ended in order is not one that hangs.
        self.0.0.stopped.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_process_did_not_run_is_not_counted() {
        let (clock, tick) = (Clock::default(), Duration::from_millis(100));
        let pulse = Pulse::new(clock.clone(), Duration::from_secs(10));
        pulse.beat();
        // A machine that slept for an hour.
        clock.tick(Duration::from_secs(3600), tick);
        assert!(pulse.turns());
        assert_eq!(pulse.silent(), tick * 2);
        for _ in 0..98 {
            clock.tick(tick, tick);
        }
        assert!(!pulse.turns());
        pulse.beat();
        assert!(pulse.turns());
    }
}
