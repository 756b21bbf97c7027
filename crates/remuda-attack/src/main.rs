//! `cargo xtask attack`: all attacks, or some of them; and requests made by chance.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

use anyhow::{Context, Result};
use clap::Parser;
use remuda_attack::{CATALOGUE, FuzzOptions, Options, Stage};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Attacks a real Remuda from outside, and checks that its other guests notice nothing.
#[derive(Debug, Parser)]
#[command(name = "remuda-attack")]
struct Args {
    /// `fuzz` for requests made by chance; all named attacks without it
    mode: Option<Mode>,
    /// The program under test
    #[arg(long, value_name = "FILE", required_unless_present_any = ["attacker", "list"])]
    remuda: Option<PathBuf>,
    /// Only attacks whose names begin so; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Print the names of all attacks
    #[arg(long)]
    list: bool,
    /// The short form that is part of the tests
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the table of the documentation
    #[arg(long)]
    markdown: bool,
    /// Where chance begins; the time of day if absent
    #[arg(long)]
    seed: Option<u64>,
    /// How many requests `fuzz` makes
    #[arg(long, default_value_t = 200_000)]
    requests: usize,
    /// The program of schemathesis, which `fuzz` runs as well
    #[arg(long, value_name = "FILE")]
    schemathesis: Option<PathBuf>,
    /// How long the server may take to start, to stop and to render, in seconds
    #[arg(long, value_name = "SECONDS")]
    turn: Option<u64>,
    #[arg(long, hide = true)]
    attacker: Option<String>,
    #[arg(long, hide = true)]
    stage: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    Fuzz,
}

#[tokio::main]
async fn main() -> ExitCode {
    match go(Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything held.
async fn go(args: Args) -> Result<bool> {
    if args.list {
        for attack in CATALOGUE {
            println!("{:<27} {}", attack.name, attack.what);
        }
        println!("{:<27} requests made by chance over all routes, with keys of every scope", "fuzz");
        return Ok(true);
    }
    if let Some(name) = &args.attacker {
        let stage = Stage::read(args.stage.as_deref().context("--attacker needs --stage")?)?;
        let violations = remuda_attack::attacker(name, stage).await?;
        println!("{}", serde_json::to_string(&violations)?);
        return Ok(true);
    }
    let remuda = args.remuda.clone().context("--remuda is missing")?;
    let seed = args.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |time| time.as_secs() % 1_000_000)
    });
    let this = std::env::current_exe()?;
    let mut options = match args.quick {
        true => Options::quick(remuda, this, seed),
        false => Options::full(remuda, this, seed),
    };
    options.only.clone_from(&args.only);
    options.turn = args.turn.map_or(options.turn, Duration::from_secs);
    let only_fuzz = args.mode == Some(Mode::Fuzz) || args.only == ["fuzz"];
    if only_fuzz {
        let schemathesis = args.schemathesis.clone();
        let fuzz = FuzzOptions { requests: args.requests, schemathesis, ..FuzzOptions::new(options) };
        let report = remuda_attack::fuzz(&fuzz, |news| eprintln!("{news}")).await?;
        match args.json {
            true => println!("{}", serde_json::to_string_pretty(&report)?),
            false => println!("{report}"),
        }
        return Ok(report.is_clean());
    }
    let colour = std::io::stdout().is_terminal();
    if !args.json && !args.markdown {
        println!("{}", remuda_attack::HEAD);
    }
    let report = remuda_attack::run(&options, |line| match args.json || args.markdown {
        true => eprintln!("{}", line.shown(false)),
        false => println!("{}", line.shown(colour)),
    })
    .await?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else if args.markdown {
        println!("{}", report.markdown());
    } else {
        println!("{}", report.summary());
    }
    Ok(report.is_clean())
}
