//! `remuda serve`: the API, the queue and a runner for each ComfyUI.

use std::process::ExitCode;

use crate::config::{ServeFlags, Settings};
use crate::instance::{Instance, OR_SIMULATE};
use crate::stop::Stop;
use crate::ui;

/// What can be set on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the first line as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ServeFlags,
}

/// Runs until it is told to stop.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Before anything else, so that no signal is missed.
    let mut stop = Stop::listen()?;
    let settings = Settings::load(&args.flags.sources())?;
    settings.log.install("info")?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let instance = Instance::start(&settings).await?;
    announce(&instance, &settings, args.json)?;
    let broken = tokio::select! {
        () = stop.requested() => false,
        () = instance.ended() => true,
    };
    if broken {
        tracing::error!("a part of the service ended by itself; stopping the rest");
    }
    tracing::info!(drain_s = settings.tasks.drain.as_secs(), "stopping; a second signal stops at once");
    tokio::select! {
        () = instance.stop() => Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS }),
        // The leases stay as they are; the next start adopts what is rendering.
        () = stop.requested() => Ok(ExitCode::FAILURE),
    }
}

fn announce(instance: &Instance, settings: &Settings, json: bool) -> anyhow::Result<()> {
    let url = format!("http://{}", instance.address());
    let (store, files) = (&settings.store.url, &settings.files.url);
    if json {
        return ui::json(&serde_json::json!({
            "url": url, "store": store.to_string(), "files": files.to_string(), "workers": instance.workers(),
        }));
    }
    ui::line(format_args!("Remuda answers at {url} (API page: {url}/docs). Ctrl-C stops it."))?;
    ui::note(format_args!("  tasks in {store}, files in {files}, {} workers", instance.workers()));
    if instance.workers() == 0 {
        ui::note(format_args!("  no worker yet: add --comfyui URL{OR_SIMULATE}"));
    }
    Ok(())
}
