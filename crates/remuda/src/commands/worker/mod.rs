//! `remuda worker`: a sidecar beside a ComfyUI, working for a queue.

mod littlehorse;
mod queue;

use std::process::ExitCode;

use crate::config::{Settings, Source, WorkerFlags};
use crate::stop::Stop;

/// What can be set on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the first line as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: WorkerFlags,
}

/// Runs until it is told to stop.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let stop = Stop::listen()?;
    let settings = Settings::load(&args.flags.sources())?;
    match settings.worker.source {
        Source::Queue => queue::run(settings, stop, args.json).await,
        Source::LittleHorse => littlehorse::run(settings, stop, args.json).await,
    }
}
