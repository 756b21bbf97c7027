//! `cargo xtask chaos`: the full run, or any other.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

use clap::Parser;
use remuda_chaos::{Options, Scenario};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Breaks everything around real Remuda processes at random, and checks that nothing was lost or done twice.
#[derive(Debug, Parser)]
#[command(name = "remuda-chaos")]
struct Args {
    /// The program under test
    #[arg(long, value_name = "FILE")]
    remuda: PathBuf,
    /// Where chance begins; the time of day if absent
    #[arg(long)]
    seed: Option<u64>,
    /// How many tasks each scenario gets
    #[arg(long)]
    tasks: Option<usize>,
    /// No fault begins later than this many minutes after the start of a scenario
    #[arg(long)]
    minutes: Option<u64>,
    /// Only this scenario: postgres or sqlite; may be given several times
    #[arg(long)]
    scenario: Vec<Scenario>,
    /// How many sidecars there are
    #[arg(long, value_name = "N")]
    sidecars: Option<usize>,
    /// The run that is part of the tests
    #[arg(long)]
    short: bool,
    /// Where evidence is put when something is wrong
    #[arg(long, value_name = "DIR")]
    evidence: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |time| time.as_secs() % 1_000_000)
    });
    let scenarios = match args.scenario.is_empty() {
        true => vec![Scenario::Postgres, Scenario::Sqlite],
        false => args.scenario.clone(),
    };
    let mut clean = true;
    for scenario in scenarios {
        let mut options = match args.short {
            true => Options::short(&args.remuda, scenario, seed),
            false => Options::full(&args.remuda, scenario, seed),
        };
        options.tasks = args.tasks.unwrap_or(options.tasks);
        options.sidecars = args.sidecars.unwrap_or(options.sidecars);
        options.trouble = args.minutes.map_or(options.trouble, |minutes| Duration::from_secs(minutes * 60));
        options.evidence.clone_from(&args.evidence);
        match remuda_chaos::run(&options, |news| eprintln!("{news}")).await {
            Ok(report) => {
                println!("{report}");
                clean &= report.is_clean();
            }
            Err(error) => {
                eprintln!("error: {scenario} with seed {seed}: {error:#}");
                clean = false;
            }
        }
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
