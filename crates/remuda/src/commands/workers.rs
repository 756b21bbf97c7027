//! `remuda workers`: which ComfyUIs there are and what they do.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::Value;

use crate::api::WorkerView;
use crate::config::{ClientFlags, Settings};
use crate::ui::{self, Table};

/// What can be set on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ClientFlags,
}

/// Lists the workers of a server.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let api = super::api(&Settings::load(&args.flags.sources())?)?;
    let answer: Value = api.get("api/v1/workers").await?;
    if args.json {
        ui::json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let list = answer.get("workers").cloned().unwrap_or(answer);
    let workers: Vec<WorkerView> = serde_json::from_value(list)?;
    if workers.is_empty() {
        ui::note("no workers; start the server with --comfyui URL, or a sidecar with: remuda worker");
        return Ok(ExitCode::SUCCESS);
    }
    let now = Timestamp::now();
    let mut table =
        Table::new(&["worker", "status", "task", "seen", "version", "endpoint", "labels", "reason"]);
    for worker in workers {
        table.row(vec![
            worker.id,
            ui::status(&worker.status).to_string(),
            worker.current_task_id.as_deref().map(ui::short_id).unwrap_or_default().to_owned(),
            worker.last_active_at.map(|moment| ui::ago(moment, now)).unwrap_or_default(),
            worker.version.unwrap_or_default(),
            worker.endpoint.unwrap_or_default(),
            worker.labels.join(","),
            worker.reason.unwrap_or_default(),
        ]);
    }
    table.print()?;
    Ok(ExitCode::SUCCESS)
}
