//! What a run is to be.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Which installation is built and broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Three servers that share three ComfyUIs over one PostgreSQL, and two sidecars with one each.
    Postgres,
    /// One server on SQLite with two ComfyUIs, and one sidecar with one.
    Sqlite,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scenario::Postgres => "postgres",
            Scenario::Sqlite => "sqlite",
        })
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Scenario, String> {
        match text {
            "postgres" => Ok(Scenario::Postgres),
            "sqlite" => Ok(Scenario::Sqlite),
            _ => Err(format!("`{text}` is not a scenario; write postgres or sqlite")),
        }
    }
}

/// What a run is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program under test.
    pub remuda: PathBuf,
    /// What is built and broken.
    pub scenario: Scenario,
    /// Where chance begins.
    pub seed: u64,
    /// How many sidecars there are, each with a ComfyUI of its own.
    pub sidecars: usize,
    /// How many tasks are submitted.
    pub tasks: usize,
    /// How many clients submit and wait at once.
    pub clients: usize,
    /// No further fault begins after this time, however many tasks are left.
    pub trouble: Duration,
    /// How long everything may take to come to rest after the last fault.
    pub rest: Duration,
    /// The lease that servers give; stops and outages are measured by it.
    pub lease: Duration,
    /// How much longer than a fault its consequences may last, on a machine that does a lot besides.
    pub slack: Duration,
    /// How long PostgreSQL is away in the one long outage; none if zero.
    pub outage: Duration,
    /// Between two faults of one lane, at most.
    pub gap: Duration,
    /// Where evidence is put when something is wrong; below the system's temporary folder if absent.
    pub evidence: Option<PathBuf>,
}

impl Options {
    /// The run that is part of the tests: a minute.
    pub fn short(remuda: impl Into<PathBuf>, scenario: Scenario, seed: u64) -> Options {
        Options {
            remuda: remuda.into(),
            scenario,
            seed,
            sidecars: match scenario {
                Scenario::Postgres => 2,
                Scenario::Sqlite => 1,
            },
            tasks: 150,
            clients: 20,
            trouble: Duration::from_secs(40),
            rest: Duration::from_secs(180),
            lease: Duration::from_secs(8),
            slack: Duration::from_secs(3),
            outage: Duration::ZERO,
            gap: Duration::from_millis(1500),
            evidence: None,
        }
    }

    /// The run whose table is in the documentation.
    pub fn full(remuda: impl Into<PathBuf>, scenario: Scenario, seed: u64) -> Options {
        Options {
            tasks: 5_000,
            clients: 48,
            trouble: Duration::from_secs(60 * 60),
            rest: Duration::from_secs(15 * 60),
            lease: Duration::from_secs(5),
            slack: Duration::ZERO,
            outage: match scenario {
                Scenario::Postgres => Duration::from_secs(5 * 60),
                Scenario::Sqlite => Duration::ZERO,
            },
            gap: Duration::from_secs(4),
            ..Options::short(remuda, scenario, seed)
        }
    }
}
