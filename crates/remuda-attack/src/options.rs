//! What a run is to be.

use std::path::PathBuf;
use std::time::Duration;

/// What a run is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program under test.
    pub remuda: PathBuf,
    /// This program, which is started again as the attacker.
    pub attacker: PathBuf,
    /// Only attacks whose names begin with one of these; all if empty.
    pub only: Vec<String>,
    /// The short form, which is part of the tests.
    pub quick: bool,
    /// Where chance begins.
    pub seed: u64,
    /// How long the second tenant is watched before an attack.
    pub quiet: Duration,
    /// How long an attack lasts at least.
    pub under: Duration,
    /// How long an attack may last before it is broken off.
    pub longest: Duration,
    /// After this long an answer counts as none.
    pub patience: Duration,
    /// The second tenant's p99 may always be this long.
    pub latency: Duration,
    /// Or this many times what it is when nothing happens.
    pub times: f64,
    /// The server may use this much memory, in bytes.
    pub memory: u64,
    /// A server that uses this much is killed, so that the machine survives.
    pub cap: u64,
    /// How long a server may take to start and to stop.
    pub turn: Duration,
}

impl Options {
    /// The run whose table is in the documentation.
    pub fn full(remuda: impl Into<PathBuf>, attacker: impl Into<PathBuf>, seed: u64) -> Options {
        Options {
            remuda: remuda.into(),
            attacker: attacker.into(),
            only: Vec::new(),
            quick: false,
            seed,
            quiet: Duration::from_secs(4),
            under: Duration::from_secs(15),
            longest: Duration::from_secs(120),
            patience: Duration::from_secs(10),
            latency: Duration::from_millis(250),
            times: 5.0,
            memory: 768 << 20,
            cap: 3 << 30,
            turn: Duration::from_secs(30),
        }
    }

    /// The run that is part of the tests: a debug build on a busy machine. What is right or wrong is judged as
    /// strictly as ever; times are not.
    pub fn quick(remuda: impl Into<PathBuf>, attacker: impl Into<PathBuf>, seed: u64) -> Options {
        Options {
            quick: true,
            quiet: Duration::from_secs(1),
            under: Duration::from_secs(3),
            longest: Duration::from_secs(60),
            latency: Duration::from_secs(3),
            times: 20.0,
            turn: Duration::from_secs(60),
            ..Options::full(remuda, attacker, seed)
        }
    }
}
