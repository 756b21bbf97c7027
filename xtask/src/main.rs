//! Developer commands of this repository: `cargo xtask test`, `bench`, `chaos`, `attack`, `fuzz`.
//!
//! What a contributor runs and what CI runs is the same code, so that "green here" means "green there".
//! The crate keeps to very few dependencies: it is built before anything else can be checked.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a developer command speaks on the terminal")]

mod attack;
mod bench;
mod chaos;
mod clients;
mod fuzz;
mod littlehorse;
mod needs;
mod programs;
mod run;
mod steps;
mod term;
mod test;
mod tidy;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Developer commands of this repository.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every check and every test, as CI does.
    Test(test::Options),
    /// Run the benchmarks in release mode and print what they measured.
    Bench(bench::Options),
    /// Break everything around real processes at random, and check that nothing was lost or done twice.
    Chaos(chaos::Options),
    /// Attack a real process from outside, and check that its other guests notice nothing.
    Attack(attack::Options),
    /// Fuzz the parsers of foreign input, each target for a while.
    Fuzz(fuzz::Options),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Test(options) => test::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Chaos(options) => chaos::run(&options),
        Command::Attack(options) => attack::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{} {error:#}", term::red("error:"));
            ExitCode::FAILURE
        }
    }
}
