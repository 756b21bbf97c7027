//! What the numbers of an attack mean. Pure.

use crate::options::Options;
use serde::Serialize;
use std::time::Duration;

/// How long answers took, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// How many there were.
    pub count: usize,
    /// Half of them were faster.
    pub p50: f64,
    /// All but one in a hundred were faster.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

impl Spread {
    /// Of these times.
    pub fn of(times: &[Duration]) -> Spread {
        let mut millis: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        millis.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = (millis.len() as f64 * part).ceil() as usize;
            millis.get(place.saturating_sub(1)).copied().unwrap_or_default()
        };
        Spread { count: millis.len(), p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

/// What was seen of the server during one attack.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Measured {
    /// The second tenant's submit and get, before.
    pub quiet: Spread,
    /// The same during the attack.
    pub under: Spread,
    /// How many of these were not answered as they should be.
    pub failed: usize,
    /// The first of them.
    pub first_failure: Option<String>,
    /// `/live` during the attack.
    pub live: Spread,
    /// How often it did not say 200.
    pub live_failed: usize,
    /// The most memory that the server had (VmHWM), in bytes.
    pub peak: u64,
    /// Whether it was killed because it had too much.
    pub capped: bool,
}

/// What is wrong with these numbers; nothing if the attack achieved nothing.
pub(crate) fn judge(seen: &Measured, options: &Options) -> Vec<String> {
    let mut wrong = Vec::new();
    if seen.capped {
        wrong.push(format!("killed at {} MiB of memory", seen.peak >> 20));
    } else if seen.peak > options.memory {
        wrong.push(format!("{} MiB of memory, {} are allowed", seen.peak >> 20, options.memory >> 20));
    }
    if seen.failed > 0 {
        let first = seen.first_failure.as_deref().unwrap_or("no answer");
        let all = seen.under.count;
        wrong.push(format!("the second tenant was refused {} times of {all}: {first}", seen.failed));
    }
    let allowed = bound(seen.quiet.p99, options);
    if seen.under.count > 0 && seen.under.p99 > allowed {
        wrong.push(format!(
            "the second tenant waited {:.0} ms (p99), {allowed:.0} ms are allowed",
            seen.under.p99
        ));
    }
    if seen.live_failed > 0 {
        wrong.push(format!("/live failed {} times of {}", seen.live_failed, seen.live.count));
    }
    wrong
}

fn bound(quiet: f64, options: &Options) -> f64 {
    (options.latency.as_secs_f64() * 1e3).max(quiet * options.times)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::full("remuda", "attacker", 1)
    }

    fn spread(p99: f64) -> Spread {
        Spread { count: 100, p50: p99 / 2.0, p99, max: p99 }
    }

    #[test]
    fn quantiles_are_times_that_were_measured() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(Spread::of(&times), Spread { count: 100, p50: 50.0, p99: 99.0, max: 100.0 });
        assert_eq!(Spread::of(&times[..1]), Spread { count: 1, p50: 1.0, p99: 1.0, max: 1.0 });
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn what_nobody_feels_is_no_violation() {
        let seen =
            Measured { quiet: spread(10.0), under: spread(249.0), peak: 100 << 20, ..Measured::default() };
        assert_eq!(judge(&seen, &options()), Vec::<String>::new());
        // A slow machine is slow before the attack as well.
        let slow = Measured { quiet: spread(100.0), under: spread(499.0), ..seen };
        assert_eq!(judge(&slow, &options()), Vec::<String>::new());
    }

    #[test]
    fn each_bound_is_looked_at() {
        let good = Measured { quiet: spread(10.0), under: spread(20.0), ..Measured::default() };
        let judged = |seen: Measured| judge(&seen, &options());
        assert_eq!(judged(Measured { under: spread(251.0), ..good.clone() }).len(), 1);
        assert_eq!(judged(Measured { peak: 769 << 20, ..good.clone() }).len(), 1);
        assert_eq!(judged(Measured { peak: 4 << 30, capped: true, ..good.clone() }).len(), 1);
        assert_eq!(judged(Measured { failed: 1, ..good.clone() }).len(), 1);
        assert_eq!(judged(Measured { live_failed: 1, ..good }).len(), 1);
    }
}
