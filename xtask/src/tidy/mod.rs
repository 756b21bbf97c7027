//! Rules of the repository that no compiler checks, each a file here with one subject.
//!
//! A check looks at the [`Repository`] and returns its [`Findings`]; it does not print and does not stop
//! at the first problem, so that one run shows everything.

mod direction;
mod duplicates;
mod growth;
mod length;
mod licences;
mod links;
mod lints;
mod marks;
mod repository;
mod spdx;
mod words;
pub(crate) mod workspace;

use crate::term;
use anyhow::{Result, bail};
use repository::Repository;

/// What one check has to say.
#[derive(Debug, Default)]
struct Findings {
    /// What must be changed.
    problems: Vec<String>,
    /// What should be looked at.
    warnings: Vec<String>,
    /// What was looked at, so that a check that sees nothing is noticed.
    seen: String,
}

type Check = fn(&Repository) -> Findings;

const CHECKS: &[(&str, Check)] = &[
    ("licences", licences::check),
    ("duplicates", duplicates::check),
    ("direction", direction::check),
    ("lints", lints::check),
    ("words", words::check),
    ("marks", marks::check),
    ("length", length::check),
    ("links", links::check),
    ("growth", growth::check),
];

/// Runs all checks; an error if any found a problem.
pub(crate) fn run() -> Result<()> {
    let repository = Repository::load()?;
    let mut problems = 0;
    for (name, check) in CHECKS {
        let findings = check(&repository);
        problems += findings.problems.len();
        let verdict = if findings.problems.is_empty() { term::green("ok") } else { term::red("FAILED") };
        println!("{name:<11} {verdict}  ({})", findings.seen);
        for problem in &findings.problems {
            println!("  {} {problem}", term::red("problem:"));
        }
        for warning in &findings.warnings {
            println!("  {} {warning}", term::yellow("warning:"));
        }
    }
    match problems {
        0 => Ok(()),
        1 => bail!("1 problem"),
        many => bail!("{many} problems"),
    }
}
