//! Several programs at once, as many as the machine takes.
//!
//! The machine has a number of places. A program takes as many as its manners say, and the longest begins first.

use super::count::Counts;
use super::manners::{self, Manners};
use super::{Program, Ran};
use crate::clients::target_folder;
use crate::term;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often it is said who still runs.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

/// Runs all, and tells of each when it has ended. An error only when one could not be run.
pub(super) fn run(
    programs: Vec<Program>,
    variables: &[(&str, OsString)],
    tell: impl Fn(&Ran),
) -> Result<Vec<Ran>> {
    let outputs = target_folder()?.join("tmp/tests");
    std::fs::create_dir_all(&outputs).with_context(|| format!("cannot make {}", outputs.display()))?;
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let mut waiting = Waiting::new(programs, cores);
    let mut ran = Vec::new();
    // Room for all: nobody waits for us to tell of it, not even after an error.
    let (done, ended) = mpsc::sync_channel::<Result<Ran>>(waiting.programs.len());
    std::thread::scope(|scope| {
        let mut running: BTreeMap<String, Manners> = BTreeMap::new();
        loop {
            while let Some((program, manners)) = waiting.next(&running) {
                running.insert(program.name(), manners);
                let (done, outputs) = (done.clone(), &outputs);
                scope.spawn(move || {
                    // The receiver is gone only after an error, which is told instead.
                    let _ = done.send(one(program, &manners, variables, outputs));
                });
            }
            if running.is_empty() {
                return Ok(ran);
            }
            match ended.recv_timeout(SIGN_OF_LIFE) {
                Ok(one) => {
                    let one = one?;
                    running.remove(&one.program.name());
                    tell(&one);
                    ran.push(one);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let names: Vec<&str> = running.keys().map(String::as_str).collect();
                    println!("{}", term::dim(&format!("still running: {}", names.join(", "))));
                    term::flush();
                }
                // We hold a sender ourselves.
                Err(RecvTimeoutError::Disconnected) => return Ok(ran),
            }
        }
    })
}

/// Runs one to its end. What it prints goes into a file: nobody has to read along, and it is there afterwards.
fn one(program: Program, manners: &Manners, variables: &[(&str, OsString)], outputs: &Path) -> Result<Ran> {
    let output = outputs.join(format!("{}.log", program.name().replace("::", "-").replace(' ', "-")));
    let file = File::create(&output).with_context(|| format!("cannot make {}", output.display()))?;
    let again = file.try_clone().context("cannot use one file for all that is printed")?;
    let mut command = Command::new(&program.path);
    command.current_dir(&program.folder).stdin(Stdio::null()).stdout(file).stderr(again);
    // As cargo says it; what is set here is of this program, and would be wrong.
    command.env("CARGO_MANIFEST_DIR", &program.folder).env("CARGO_PKG_NAME", &program.package);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    if std::env::var_os(THREADS).is_none() {
        command.env(THREADS, manners.threads.to_string());
    }
    let started = Instant::now();
    let status = command.status().with_context(|| format!("cannot start {}", program.path.display()))?;
    let took = started.elapsed();
    let said = std::fs::read(&output).with_context(|| format!("cannot read {}", output.display()))?;
    let counts = Counts::find(&String::from_utf8_lossy(&said));
    let failure = match (status.success(), counts) {
        (true, Some(counts)) if counts.failed == 0 => None,
        (true, _) => Some("it ended without having run its tests".to_owned()),
        (false, Some(counts)) if counts.failed > 0 => Some(format!("{} failed", counts.failed)),
        (false, _) => Some(format!("it broke off ({status})")),
    };
    Ok(Ran { program, failure, counts, took, output })
}

/// How many tests of one program run at once.
const THREADS: &str = "RUST_TEST_THREADS";

/// Those that have not begun, the longest first.
struct Waiting {
    programs: Vec<(Program, Manners)>,
    places: usize,
}

impl Waiting {
    fn new(programs: Vec<Program>, cores: usize) -> Self {
        let mut programs: Vec<(Program, Manners)> = programs
            .into_iter()
            .map(|program| {
                let manners = manners::of(&program.name(), cores);
                (program, manners)
            })
            .collect();
        programs.sort_by_key(|(_, manners)| std::cmp::Reverse(manners.seconds));
        Self { programs, places: cores * manners::PLACES_PER_CORE }
    }

    /// Takes out the first that can begin beside those that run.
    fn next(&mut self, running: &BTreeMap<String, Manners>) -> Option<(Program, Manners)> {
        let taken: usize = running.values().map(|manners| manners.places).sum();
        let fits = |manners: &Manners| running.is_empty() || taken + manners.places <= self.places;
        let found = self.programs.iter().position(|(_, manners)| fits(manners))?;
        Some(self.programs.remove(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn program(target: &str) -> Program {
        Program {
            package: "crate".to_owned(),
            kind: "test".to_owned(),
            target: target.to_owned(),
            path: PathBuf::new(),
            folder: PathBuf::new(),
        }
    }

    fn waiting(all: &[(&str, Manners)], places: usize) -> Waiting {
        Waiting { programs: all.iter().map(|(name, manners)| (program(name), *manners)).collect(), places }
    }

    const SMALL: Manners = Manners { places: 1, threads: 2, seconds: 1 };
    const LARGE: Manners = Manners { places: 2, ..SMALL };

    /// Which begin one after the other while nothing ends.
    fn begun(waiting: &mut Waiting, running: &mut BTreeMap<String, Manners>) -> Vec<String> {
        let mut names = Vec::new();
        while let Some((program, manners)) = waiting.next(running) {
            names.push(program.target.clone());
            running.insert(program.name(), manners);
        }
        names
    }

    #[test]
    fn as_many_begin_as_there_are_places() {
        let mut waiting = waiting(&[("a", LARGE), ("b", LARGE), ("c", SMALL), ("d", SMALL)], 3);
        let mut running = BTreeMap::new();
        assert_eq!(begun(&mut waiting, &mut running), ["a", "c"]);
        running.remove("crate::c");
        assert_eq!(begun(&mut waiting, &mut running), ["d"]);
        running.clear();
        assert_eq!(begun(&mut waiting, &mut running), ["b"]);
    }

    #[test]
    fn one_larger_than_the_machine_still_begins() {
        let mut waiting = waiting(&[("a", LARGE), ("b", SMALL)], 1);
        let mut running = BTreeMap::new();
        assert_eq!(begun(&mut waiting, &mut running), ["a"]);
    }

    #[test]
    fn the_longest_begins() {
        let chaos = Program { package: "remuda".to_owned(), ..program("chaos") };
        let programs = Waiting::new(vec![program("unknown"), chaos], 2).programs;
        assert_eq!(programs[0].0.target, "chaos");
    }

    #[test]
    fn a_program_that_runs_no_tests_has_failed() {
        let outputs = std::env::temp_dir().join(format!("remuda-xtask-programs-{}", std::process::id()));
        std::fs::create_dir_all(&outputs).unwrap();
        for (path, expected) in [("true", "without having run"), ("false", "broke off")] {
            let path = crate::run::which(path).unwrap();
            let program = Program { path, folder: outputs.clone(), ..program("any") };
            let ran = one(program, &SMALL, &[], &outputs).unwrap();
            assert!(ran.failure.as_ref().is_some_and(|said| said.contains(expected)), "{:?}", ran.failure);
        }
        std::fs::remove_dir_all(&outputs).unwrap();
    }
}
