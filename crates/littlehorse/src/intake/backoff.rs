//! How long to wait after something went wrong.

use std::time::Duration;

/// The first pause after a failure.
const FIRST: Duration = Duration::from_millis(100);
/// The longest pause after failures: a host that is back is asked within seconds.
const LONGEST: Duration = Duration::from_secs(5);
/// The first pause after empty answers.
const FIRST_EMPTY: Duration = Duration::from_millis(50);
/// The longest pause after empty answers.
const LONGEST_EMPTY: Duration = Duration::from_secs(1);

/// The pause after the n-th failure in a row, from 1; `jitter` between 0 and 1 moves it by a quarter in either direction.
pub(crate) fn failures(n: u32, jitter: f64) -> Duration {
    doubled(FIRST, n, LONGEST).mul_f64(0.75 + 0.5 * jitter.clamp(0.0, 1.0))
}

/// The pause after the n-th empty answer in a row that was one too many.
pub(crate) fn empties(n: u32) -> Duration {
    doubled(FIRST_EMPTY, n, LONGEST_EMPTY)
}

fn doubled(first: Duration, n: u32, longest: Duration) -> Duration {
    let doublings = n.saturating_sub(1).min(16);
    first.saturating_mul(1 << doublings).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_seconds() {
        let millis: Vec<u128> = [1, 2, 3, 6, 7, 100].map(|n| failures(n, 0.5).as_millis()).into();
        assert_eq!(millis, [100, 200, 400, 3200, 5000, 5000]);
        assert_eq!(failures(1, 0.0).as_millis(), 75);
        assert_eq!(failures(7, 1.0).as_millis(), 6250);
        assert_eq!(empties(1).as_millis(), 50);
        assert_eq!(empties(u32::MAX).as_millis(), 1000);
    }
}
