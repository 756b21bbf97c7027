//! The closing line of a test program: how many tests passed, and how many did not.

use std::time::Duration;

/// What it counts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) ignored: u64,
    pub(super) measured: u64,
    pub(super) filtered_out: u64,
}

/// How the line begins.
const BEGINS: &str = "test result: ";

impl Counts {
    /// From what a program printed.
    pub(super) fn find(output: &str) -> Option<Self> {
        output.lines().rev().find_map(|line| Self::parse(line.strip_prefix(BEGINS)?))
    }

    /// `ok. 3 passed; 0 failed; …`.
    fn parse(rest: &str) -> Option<Self> {
        let (_, rest) = rest.split_once(". ")?;
        let mut counts = Self::default();
        for part in rest.split("; ") {
            let Some((number, word)) = part.split_once(' ') else { continue };
            let place = match word {
                "passed" => &mut counts.passed,
                "failed" => &mut counts.failed,
                "ignored" => &mut counts.ignored,
                "measured" => &mut counts.measured,
                "filtered out" => &mut counts.filtered_out,
                _ => continue,
            };
            *place = number.parse().ok()?;
        }
        Some(counts)
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
            measured: self.measured + other.measured,
            filtered_out: self.filtered_out + other.filtered_out,
        }
    }

    /// The same words as those of a test program, for whoever looks for them in a log.
    pub(super) fn line(self, ok: bool, took: Duration) -> String {
        let Self { passed, failed, ignored, measured, filtered_out } = self;
        format!(
            "{BEGINS}{}. {passed} passed; {failed} failed; {ignored} ignored; {measured} measured; {filtered_out} filtered out; \
             finished in {:.2}s",
            if ok { "ok" } else { "FAILED" },
            took.as_secs_f64()
        )
    }
}

/// The output of one program without its closing line, so that the only one in a log counts all.
pub(super) fn without_counts(output: &str) -> String {
    output.lines().filter(|line| !line.starts_with(BEGINS)).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\nrunning 2 tests\ntest a ... ok\ntest b ... ok\n\ntest result: ok. 2 passed; 0 failed; 1 ignored; \
                        0 measured; 3 filtered out; finished in 0.10s\n\n";

    #[test]
    fn the_closing_line_is_read_and_written_alike() {
        let counts = Counts::find(SAID).unwrap();
        assert_eq!(counts, Counts { passed: 2, ignored: 1, filtered_out: 3, ..Counts::default() });
        assert!(SAID.contains(&counts.line(true, Duration::from_millis(100))));
        let failed = Counts { failed: 4, ..counts };
        assert_eq!(Counts::find(&failed.line(false, Duration::ZERO)), Some(failed));
        assert_eq!(counts.and(failed).passed, 4);
    }

    #[test]
    fn a_program_that_broke_off_has_no_counts() {
        assert_eq!(Counts::find("\nrunning 2 tests\ntest a ... ok\n"), None);
        assert_eq!(Counts::find("test result: what?\n"), None);
    }

    #[test]
    fn what_a_program_says_is_kept_but_for_its_counts() {
        assert_eq!(without_counts(SAID), "\nrunning 2 tests\ntest a ... ok\ntest b ... ok\n\n\n");
    }
}
