//! `remuda worker`: a sidecar beside a ComfyUI, working for a queue.

#[cfg(test)]
mod example;
mod foreign;
mod lifecycle;
mod littlehorse;
mod queue;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::process::ExitCode;

use crate::config::{Setting, Settings, WorkerFlags};
use crate::stop::Stop;

/// What `--source` may say. A new source is one more line here, and its file.
pub(crate) static SOURCES: &[WorkerSource] = &[queue::SOURCE, littlehorse::SOURCE];

/// A kind of queue that a worker can work for.
#[derive(Debug)]
pub(crate) struct WorkerSource {
    /// As `--source` names it, and as the section of its own settings is called.
    pub(crate) name: &'static str,
    /// Its own settings.
    pub(crate) settings: &'static [&'static Setting],
    /// Works for it until it is told to stop: [`lifecycle::run_worker`] for what the source itself brings.
    run: fn(Settings, Stop, bool) -> Work,
}

/// A worker that works.
type Work = Pin<Box<dyn Future<Output = anyhow::Result<ExitCode>>>>;

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
    let source = settings.worker.source.get();
    (source.run)(settings, stop, args.json).await
}
