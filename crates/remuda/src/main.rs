//! The `remuda` program: reads the command line and hands over to one module per command.

mod commands;
mod config;
mod demo;
mod sim;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Any number of ComfyUI instances as one reliable rendering service.
#[derive(Debug, Parser)]
#[command(name = "remuda", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Render a handful of tasks on two simulated ComfyUIs and show where the results are.
    Demo(demo::Args),
    /// Run a ComfyUI that needs no GPU.
    Sim(sim::Args),
    /// Show every setting, its value and where it came from.
    Config(commands::config::Args),
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn")))
        .with_writer(std::io::stderr)
        .init();
    match cli.command {
        Command::Demo(args) => demo::run(args).await,
        Command::Sim(args) => sim::run(args).await,
        Command::Config(args) => commands::config::run(&args),
    }
}
