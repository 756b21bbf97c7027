//! What came of the requests.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What came of the requests.
#[derive(Debug, Default, Serialize)]
pub struct FuzzReport {
    /// Where chance began.
    pub seed: u64,
    /// How many were made.
    pub requests: u64,
    /// How many got past authentication and parsing.
    pub past: u64,
    /// By status; 0 is an answer that is not HTTP, or none because the connection was closed.
    pub by_status: BTreeMap<u16, u64>,
    /// By route: how many, and how many of them got past.
    pub by_route: BTreeMap<String, (u64, u64)>,
    /// The slowest answer, in milliseconds.
    pub slowest_ms: f64,
    /// The most memory that the server had, in bytes.
    pub peak: u64,
    /// What should not have been.
    pub violations: Vec<String>,
}

impl FuzzReport {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// The part of the requests that got past authentication and parsing, in percent.
    pub fn share(&self) -> f64 {
        100.0 * self.past as f64 / (self.requests.max(1) as f64)
    }

    pub(super) fn add(&mut self, other: FuzzReport) {
        self.requests += other.requests;
        self.past += other.past;
        for (status, count) in other.by_status {
            *self.by_status.entry(status).or_default() += count;
        }
        for (route, (all, past)) in other.by_route {
            let counts = self.by_route.entry(route).or_default();
            counts.0 += all;
            counts.1 += past;
        }
        self.slowest_ms = self.slowest_ms.max(other.slowest_ms);
        self.violations.extend(other.violations);
    }
}

impl fmt::Display for FuzzReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (route, (all, past)) in &self.by_route {
            writeln!(f, "{route:<56} {all:>7} {past:>7} past")?;
        }
        let statuses: Vec<String> =
            self.by_status.iter().map(|(status, count)| format!("{status}: {count}")).collect();
        writeln!(f, "{}", statuses.join(", "))?;
        writeln!(
            f,
            "{} requests with seed {}, {:.1} % of them past authentication and parsing; slowest {:.0} ms; peak {} MiB",
            self.requests,
            self.seed,
            self.share(),
            self.slowest_ms,
            self.peak >> 20
        )?;
        for violation in self.violations.iter().take(50) {
            writeln!(f, "VIOLATED: {violation}")?;
        }
        match self.is_clean() {
            true => write!(f, "held"),
            false => write!(f, "{} violations", self.violations.len()),
        }
    }
}
