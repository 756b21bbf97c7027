//! How the work of a function grows with its input.
//!
//! Measured is the time that the thread itself has computed, not the time that has passed: a busy machine does not change
//! it. The input is doubled three times. A function in proportion to its input then takes eight times as long, one that
//! sorts a little more, a quadratic one sixty-four times.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// How much larger the large input is.
const LARGER: usize = 8;

/// How much longer it may take: twice as long as in proportion, for what no longer fits into the caches.
const BOUND: f64 = 18.0;

/// Shorter times say nothing.
const FLOOR: Duration = Duration::from_micros(40);

/// How often the small one is run; the shortest time counts.
const RUNS: usize = 3;

/// How often a case is measured before it counts as failed.
const ROUNDS: usize = 4;

/// Something to be done once the input was made.
pub type Work = Box<dyn FnMut()>;

/// One line of the table: functions, and an input that would cost most.
#[derive(Debug)]
pub struct Case {
    /// The functions that are run, as tidy (in `cargo xtask test`) looks for them.
    covers: &'static [&'static str],
    what: &'static str,
    size: usize,
    make: fn(usize) -> Work,
}

/// A line of a table: what it covers, with which input, of which size, and how that input is made.
pub fn case(
    covers: &'static [&'static str],
    what: &'static str,
    size: usize,
    make: fn(usize) -> Work,
) -> Case {
    Case { covers, what, size, make }
}

/// Runs every line of a table.
pub fn check(table: &[Case]) {
    let failed: Vec<String> = table.iter().filter_map(Case::failure).collect();
    assert!(failed.is_empty(), "grows faster than its input:\n{}", failed.join("\n"));
}

impl Case {
    fn failure(&self) -> Option<String> {
        let mut last = None;
        for _ in 0..ROUNDS {
            let small = shortest((self.make)(self.size), RUNS).max(FLOOR);
            let large = shortest((self.make)(self.size * LARGER), 1);
            let growth = large.as_secs_f64() / small.as_secs_f64();
            if growth <= BOUND {
                return None;
            }
            last = Some(format!(
                "{} with {}: {LARGER} times the input took {growth:.0} times the work ({small:?}, {large:?})",
                self.covers.join(", "),
                self.what
            ));
        }
        last
    }
}

fn shortest(mut work: Work, runs: usize) -> Duration {
    let mut run = || {
        let begun = computed();
        work();
        computed().saturating_sub(begun)
    };
    (0..runs).map(|_| run()).min().unwrap_or_default()
}

/// How long this thread has computed.
fn computed() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    fn work(steps: usize) -> Work {
        Box::new(move || {
            let sum = (0..steps as u64).fold(0_u64, |sum, n| black_box(sum.rotate_left(5) ^ n));
            black_box(sum);
        })
    }

    #[test]
    fn what_grows_with_its_input_passes() {
        check(&[
            case(&["a::linear"], "steps", 30_000, work),
            case(&["a::sorting"], "steps", 3_000, |n| work(n * n.ilog2() as usize)),
            // So little that it says nothing.
            case(&["a::little"], "steps", 1, |n| work(n * n)),
        ]);
    }

    #[test]
    fn what_grows_with_the_square_of_its_input_is_named() {
        for (name, failure) in [
            ("a::quadratic", case(&["a::quadratic"], "pairs", 300, |n| work(n * n)).failure()),
            // With a linear part beside it that is a third of the work at first.
            ("a::scan", case(&["a::scan"], "pairs", 1_000, |n| work(250 * n + n * n / 2)).failure()),
        ] {
            let failure = failure.expect(name);
            assert!(failure.starts_with(name) && failure.contains("8 times the input"), "{failure}");
        }
    }

    #[test]
    #[should_panic(expected = "a::quadratic with pairs")]
    fn a_table_with_one_of_them_fails() {
        check(&[
            case(&["a::linear"], "steps", 30_000, work),
            case(&["a::quadratic"], "pairs", 300, |n| work(n * n)),
        ]);
    }
}
