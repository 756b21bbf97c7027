//! The test programs: built once, with everything in one set of features, and run side by side.
//!
//! Most of them wait most of the time: for leases to run out, for servers that are away, for processes that were killed. One after
//! the other they would take several times as long. How long each takes, and what it leaves for others, is in [`manners`].

mod build;
mod count;
mod manners;
mod postgres;
mod side_by_side;

pub(crate) use build::{Program, USUAL, build};

use crate::term;
use anyhow::{Result, bail};
use count::Counts;
use postgres::Postgres;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// One that was run.
struct Ran {
    program: Program,
    /// What is wrong with how it ended.
    failure: Option<String>,
    /// What its last lines count; `None` if it did not come to them.
    counts: Option<Counts>,
    took: Duration,
    /// All that it printed.
    output: PathBuf,
}

/// Runs them all, whichever fail, and says at the end how many tests passed.
pub(crate) fn run(programs: Vec<Program>, variables: &[(&str, OsString)]) -> Result<()> {
    let started = Instant::now();
    let ran = side_by_side::run(programs, variables, tell)?;
    conclude(&ran, started.elapsed())
}

/// The same with one private PostgreSQL for all: starting one in each would take longer than their tests.
pub(crate) fn run_with_postgres(programs: Vec<Program>) -> Result<()> {
    let postgres = Postgres::start()?;
    let variables: Vec<_> = postgres.variable().into_iter().collect();
    let done = run(programs, &variables);
    postgres.stop()?;
    done
}

/// One line, and of a program that failed all that it said, in one piece.
fn tell(ran: &Ran) {
    let passed =
        ran.counts.map_or_else(|| "no counts".to_owned(), |counts| format!("{} passed", counts.passed));
    let (word, paint): (_, fn(&str) -> String) = match ran.failure {
        None => ("ok", term::green),
        Some(_) => ("FAILED", term::red),
    };
    let word = paint(&format!("{word:<6}"));
    println!("{word}  {:>12}  {passed:>11}  {}", term::time(ran.took), ran.program.name());
    if let Some(failure) = &ran.failure {
        let said = std::fs::read(&ran.output).unwrap_or_default();
        println!("{}", count::without_counts(&String::from_utf8_lossy(&said)).trim_end());
        println!("{} {}: {failure}", term::red("FAILED:"), ran.program.name());
        println!("  once more: {}\n", ran.program.again());
    }
    term::flush();
}

/// Says what came of all together, as a single program would say it of itself.
fn conclude(ran: &[Ran], took: Duration) -> Result<()> {
    let all = ran.iter().filter_map(|ran| ran.counts).fold(Counts::default(), Counts::and);
    let failed: Vec<&Ran> = ran.iter().filter(|ran| ran.failure.is_some()).collect();
    println!("\n{} test programs", ran.len());
    for ran in &failed {
        println!("failed: {}", ran.program.again());
    }
    println!("{}", all.line(failed.is_empty(), took));
    term::flush();
    match failed.len() {
        0 => Ok(()),
        1 => bail!("1 of {} test programs failed", ran.len()),
        many => bail!("{many} of {} test programs failed", ran.len()),
    }
}
