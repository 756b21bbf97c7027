//! How each test program behaves: how long it takes, and what it leaves for others.

/// How a program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manners {
    /// How many places it takes of those that the machine has.
    pub(super) places: usize,
    /// How many of its tests run at once.
    pub(super) threads: usize,
    /// How long it takes, to begin with the longest; it need not be exact.
    pub(super) seconds: u32,
}

/// A core has room for this many places.
pub(super) const PLACES_PER_CORE: usize = 2;

use Kind::{Computes, Fills, Usual, Waits};

/// A line of the table. The reason stands beside it.
struct Line {
    program: &'static str,
    seconds: u32,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Waits now and then: one place, as many tests at once as there are cores.
    Usual,
    /// Does little but wait: one place, and twice as many tests at once.
    Waits,
    /// Computes all the time, or starts many processes: as many places as there are cores.
    Computes,
    /// Nothing else would get its turn: all places.
    Fills,
}

/// Those that take long; everything else takes a few seconds, and comes after them.
const TABLE: &[Line] = &[
    // Every promise of the store once more, with a pooler of its own for each.
    line("remuda-store::postgres_pooled", 120, Waits),
    // A browser, and clients in Python and Node.
    line("remuda::clients", 107, Computes),
    // Sidecars whose connections, leases and keys come to their ends.
    line("remuda-server::sidecar", 96, Waits),
    // Outages, restarts and heartbeats of a LittleHorse server, at its own pace.
    line("remuda::littlehorse_faults", 89, Waits),
    // A whole installation of processes that are killed under load; its clients have deadlines.
    line("remuda::chaos", 91, Computes),
    // Each case has a database of its own, which takes the server longer to make than the case to run.
    line("remuda-store::postgres", 93, Usual),
    // Leases that run out, with bounds on when: not more at once than usual.
    line("remuda-runner::herd", 65, Usual),
    // Files of hundreds of megabytes pass through.
    line("remuda-server::memory", 60, Usual),
    line("remuda-store::sqlite", 48, Usual),
    line("remuda-server::door", 42, Usual),
    // Waits for longer than the official SDK tries, which is half a minute.
    line("littlehorse-double::ours", 39, Waits),
    line("littlehorse-double::python", 32, Waits),
    line("remuda-server::native", 30, Usual),
    line("remuda::littlehorse", 30, Usual),
    line("remuda-server::sync", 29, Usual),
    line("remuda::process", 27, Usual),
    // Every recording is played, and every file encoded and decoded.
    line("comfyui-sim::replay", 26, Usual),
    line("comfyui::faults", 25, Usual),
    line("remuda-runner::journal", 25, Usual),
    line("remuda-server::api", 23, Usual),
    // A real LittleHorse server with a Kafka behind it: two Javas that fill both cores while they start.
    line("remuda::littlehorse_real", 120, Fills),
    line("littlehorse-double::real", 60, Fills),
];

const fn line(program: &'static str, seconds: u32, kind: Kind) -> Line {
    Line { program, seconds, kind }
}

/// How this one is run.
pub(super) fn of(program: &str, cores: usize) -> Manners {
    let usual = Manners { places: 1, threads: cores, seconds: 1 };
    let Some(line) = TABLE.iter().find(|line| line.program == program) else { return usual };
    let usual = Manners { seconds: line.seconds, ..usual };
    match line.kind {
        Usual => usual,
        Waits => Manners { threads: 2 * cores, ..usual },
        Computes => Manners { places: cores, ..usual },
        Fills => Manners { places: cores * PLACES_PER_CORE, ..usual },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::root;
    use std::collections::HashSet;

    #[test]
    fn the_table_names_programs_that_are_there_each_once() {
        let mut names = HashSet::new();
        for line in TABLE {
            assert!(names.insert(line.program), "{} is there twice", line.program);
            let (package, target) = line.program.split_once("::").expect("a package and a test of it");
            let tests = root().join("crates").join(package).join("tests");
            let there =
                tests.join(format!("{target}.rs")).is_file() || tests.join(target).join("main.rs").is_file();
            assert!(there, "there is no {}", line.program);
        }
    }

    #[test]
    fn what_the_table_does_not_know_is_run_as_usual() {
        assert_eq!(of("nobody::knows", 2), Manners { places: 1, threads: 2, seconds: 1 });
        assert_eq!(of("remuda::chaos", 2).places, 2);
        assert_eq!(of("littlehorse-double::ours", 2).threads, 4);
    }
}
