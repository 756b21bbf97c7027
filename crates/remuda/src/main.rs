//! The `remuda` program: reads the command line and hands over to one module per command.

mod api;
mod commands;
mod config;
#[cfg(feature = "sim")]
mod demo;
mod instance;
mod process;
#[cfg(feature = "sim")]
mod sim;
mod stop;
mod ui;
#[cfg(not(feature = "sim"))]
mod without_sim;

use clap::{CommandFactory as _, Parser, Subcommand};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Memory that was used once for something large, by whichever thread, is free for everything else afterwards. The C library's
/// allocator keeps it for each thread, which took up to two thirds more under attack.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    #[cfg(feature = "sim")]
    Demo(demo::Args),
    #[cfg(not(feature = "sim"))]
    #[command(alias = "demo", hide = true)]
    Sim(without_sim::Args),
    /// Run the service: the API, the queue and a runner for each ComfyUI.
    Serve(commands::serve::Args),
    /// Run a sidecar beside a ComfyUI, for a server on another machine or for LittleHorse.
    Worker(commands::worker::Args),
    /// Render one workflow: progress bar, files on disk.
    Run(commands::run::Args),
    /// Put a task into the queue.
    Submit(commands::submit::Args),
    /// Show one task.
    Status(commands::tasks::OneTask),
    /// List tasks, newest first.
    List(commands::tasks::ListArgs),
    /// Follow a task to its end, or everything that happens.
    Watch(commands::tasks::WatchArgs),
    /// Stop tasks.
    Cancel(commands::tasks::ManyTasks),
    /// Run an ended task again.
    Retry(commands::tasks::OneTask),
    /// Show the ComfyUIs behind a server.
    Workers(commands::workers::Args),
    /// Make, list and revoke API keys.
    Keys(commands::keys::Args),
    /// Run a ComfyUI that needs no GPU.
    #[cfg(feature = "sim")]
    Sim(sim::Args),
    /// Print a completion script for a shell.
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Show every setting, its value and where it came from.
    Config(commands::config::Args),
}

/// How many threads wait for files and the like at once. Each keeps about a MiB of its own; what is more than these waits.
const BLOCKING_THREADS: usize = 64;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(start()),
        Err(error) => {
            ui::note(format_args!("the threads could not be started: {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn start() -> ExitCode {
    let cli = Cli::parse();
    // Servers log as their settings say; the others only what RUST_LOG asks for.
    if !matches!(cli.command, Command::Serve(_) | Command::Worker(_)) {
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("off")))
            .with_writer(std::io::stderr)
            .init();
    }
    match run(cli.command).await {
        Ok(code) => code,
        Err(error) if error.is::<config::ConfigError>() => {
            ui::note(format_args!("{error:#}"));
            ExitCode::from(2)
        }
        Err(error) => {
            ui::note(format_args!("{} {error:#}", console::style("error:").for_stderr().red().bold()));
            if error.is::<commands::BadInput>() { ExitCode::from(2) } else { api::exit_code(&error) }
        }
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        #[cfg(feature = "sim")]
        Command::Demo(args) => demo::run(args).await,
        #[cfg(feature = "sim")]
        Command::Sim(args) => sim::run(args).await,
        #[cfg(not(feature = "sim"))]
        Command::Sim(args) => without_sim::run(&args),
        Command::Serve(args) => commands::serve::run(args).await,
        Command::Worker(args) => commands::worker::run(args).await,
        Command::Keys(args) => commands::keys::run(args).await,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "remuda", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(args) => commands::run::run(args).await,
        Command::Submit(args) => commands::submit::run(args).await,
        Command::Status(args) => commands::tasks::status(args).await,
        Command::List(args) => commands::tasks::list(args).await,
        Command::Watch(args) => commands::tasks::watch(args).await,
        Command::Cancel(args) => commands::tasks::cancel(args).await,
        Command::Retry(args) => commands::tasks::retry(args).await,
        Command::Workers(args) => commands::workers::run(args).await,
        Command::Config(args) => commands::config::run(&args),
    }
}
