//! `cargo xtask test`: the steps one after the other, each with its time, and a table at the end.

use crate::steps::{Done, Step};
use crate::term;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use std::time::{Duration, Instant};

/// How to run the tests.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only this step; can be given more than once
    #[arg(long, value_name = "STEP")]
    only: Vec<Step>,
    /// Go on after a failing step, to see everything that is wrong in one run
    #[arg(long)]
    keep_going: bool,
    /// Run only the tests with a real LittleHorse server, and fail if none can be had
    #[arg(long)]
    littlehorse: bool,
}

impl Options {
    /// The steps that were asked for by name; none means all of them.
    fn named(&self) -> Vec<Step> {
        let littlehorse = self.littlehorse.then_some(Step::Littlehorse);
        self.only.iter().copied().chain(littlehorse).collect()
    }
}

enum Outcome {
    Passed,
    /// What could not be tested, and why.
    Incomplete(String),
    Failed,
    NotRun,
}

struct Report {
    step: Step,
    outcome: Outcome,
    took: Duration,
}

/// Runs the chosen steps; an error if any failed.
pub(crate) fn run(options: &Options) -> Result<()> {
    let named = options.named();
    let chosen = |step: &Step| named.is_empty() || named.contains(step);
    let started = Instant::now();
    let mut reports: Vec<Report> = Vec::new();
    let mut stopped = false;
    for &step in Step::value_variants().iter().filter(|step| chosen(step)) {
        let report = if stopped {
            Report { step, outcome: Outcome::NotRun, took: Duration::ZERO }
        } else {
            // Who asks for a step by its name wants to know that it was done.
            perform(step, named.contains(&step))
        };
        stopped |= matches!(report.outcome, Outcome::Failed) && !options.keep_going;
        reports.push(report);
    }
    print_table(&reports, started.elapsed());
    for report in &reports {
        if let Outcome::Incomplete(what) = &report.outcome {
            println!("{} {what}", term::yellow("NOT TESTED:"));
        }
    }

    let failed = reports.iter().filter(|report| matches!(report.outcome, Outcome::Failed));
    let failed: Vec<String> = failed.map(|report| report.step.name()).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn perform(step: Step, required: bool) -> Report {
    term::heading(&step.name(), &step.purpose());
    let started = Instant::now();
    let result = step.run(required);
    let took = started.elapsed();
    let outcome = match result {
        Ok(Done::Without(what)) => {
            println!("{} {what}", term::yellow("NOT TESTED:"));
            Outcome::Incomplete(what)
        }
        Ok(Done::Everything) => {
            println!("{} {} in {}", term::green("ok:"), step.name(), term::time(took));
            Outcome::Passed
        }
        Err(error) => {
            println!("{} {} after {}: {error:#}", term::red("FAILED:"), step.name(), term::time(took));
            Outcome::Failed
        }
    };
    term::flush();
    Report { step, outcome, took }
}

fn print_table(reports: &[Report], total: Duration) {
    println!("\n{}", term::bold("=== summary"));
    for Report { step, outcome, took } in reports {
        // Padded before it is painted: colour codes must not count as width.
        let (word, paint, took): (_, fn(&str) -> String, _) = match outcome {
            Outcome::Passed => ("ok", term::green, term::time(*took)),
            Outcome::Incomplete(_) => ("NOT TESTED", term::yellow, term::time(*took)),
            Outcome::Failed => ("FAILED", term::red, term::time(*took)),
            Outcome::NotRun => ("not run", term::yellow, String::new()),
        };
        println!("{:<11}  {}  {took:>12}", step.name(), paint(&format!("{word:<10}")));
    }
    println!("{:<11}  {:<10}  {:>12}", "total", "", term::time(total));
    term::flush();
}
