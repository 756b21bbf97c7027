//! How fast messages are taken from a server.

use std::time::{Duration, Instant};

/// How many seconds' worth of messages may come at once: a large graph that is served from the cache is told in one go.
const BURST_SECONDS: f64 = 10.0;

/// A bucket that fills with time and loses a drop with each message.
#[derive(Debug)]
pub(super) struct Pace {
    per_second: f64,
    left: f64,
    at: Instant,
    waited: bool,
    told: bool,
}

impl Pace {
    pub(super) fn new(per_second: u32, now: Instant) -> Self {
        let per_second = f64::from(per_second.max(1));
        Self { per_second, left: per_second * BURST_SECONDS, at: now, waited: false, told: false }
    }

    /// Counts one message; how long to wait before it is looked at, if it came too early.
    pub(super) fn take(&mut self, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now.max(self.at);
        self.left = (self.left + passed * self.per_second).min(self.per_second * BURST_SECONDS) - 1.0;
        if self.left >= 0.0 {
            return None;
        }
        self.waited = true;
        // In one piece: timers are too coarse to wait for single messages.
        Some(Duration::from_secs_f64((-self.left / self.per_second).max(0.02)))
    }

    /// Whether this is the first time that it has to wait.
    pub(super) fn is_new(&mut self) -> bool {
        self.waited && !std::mem::replace(&mut self.told, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_a_flood_is_slowed_to_the_limit() {
        let begin = Instant::now();
        let mut now = begin;
        let mut pace = Pace::new(100, now);
        for _ in 0..1000 {
            assert_eq!(pace.take(now), None, "a burst");
        }
        for _ in 0..500 {
            if let Some(rest) = pace.take(now) {
                now += rest;
            }
        }
        let took = now - begin;
        assert!(took >= Duration::from_secs(4) && took <= Duration::from_secs(6), "{took:?}");
        assert!(pace.is_new() && !pace.is_new(), "it is said once");
        assert_eq!(pace.take(now + Duration::from_secs(20)), None, "and forgotten");
    }
}
