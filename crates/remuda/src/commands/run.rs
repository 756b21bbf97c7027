//! `remuda run`: one workflow, a progress bar, files on disk.

use std::path::PathBuf;
use std::process::ExitCode;

use super::submit::{self, TaskArgs};
use super::workflow_file::WorkflowArgs;
use super::{direct, follow};
use crate::config::{ClientFlags, Settings};
use crate::ui;

/// What can be set on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    workflow: WorkflowArgs,
    #[command(flatten)]
    task: TaskArgs,
    /// Folder for the files
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// Render directly on this ComfyUI, without a server and its queue
    #[arg(long, value_name = "URL", conflicts_with_all = ["server", "key"])]
    comfyui: Option<String>,
    /// Print JSON instead of a progress bar
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ClientFlags,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(url) = &args.comfyui {
        return direct::render(url, &args.workflow, &args.out, args.json).await;
    }
    let api = super::api(&Settings::load(&args.flags.sources())?)?;
    let task = submit::submit(&api, &args.workflow, &args.task).await?;
    for warning in &task.warnings {
        ui::note(format_args!("warning: {warning}"));
    }
    follow::to_the_end(&api, &task.id, Some(&args.out), args.json).await
}
