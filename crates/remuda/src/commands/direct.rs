//! One workflow straight at one ComfyUI, without a queue.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use comfyui::{Client, Event, FileRef, PromptRequest, Session, SessionOptions, Upload};
use serde_json::json;

use super::follow;
use super::workflow_file::WorkflowArgs;
use crate::ui::{self, TaskBar};

pub(super) async fn render(
    url: &str,
    args: &WorkflowArgs,
    out: &Path,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let client = Client::new(url).with_context(|| format!("{url:?} is not the address of a ComfyUI"))?;
    let mut workflow = args.read().await?;
    for input in &args.inputs {
        let path = Path::new(&input.value);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let upload = Upload::from_file(&name, path)
            .await
            .with_context(|| format!("cannot read {}", path.display()))?;
        let placed = client
            .upload(upload)
            .await
            .with_context(|| format!("{} could not be given to {url}", path.display()))?;
        workflow = workflow.with_input(&input.node, &input.input, &placed.in_workflow())?;
    }
    let session = Session::open(client, SessionOptions::default()).await.with_context(|| {
        format!("no ComfyUI answers at {url}: start one, or try a simulated one with `remuda sim`")
    })?;
    let bar = TaskBar::new(&args.name(), json, None);
    let mut watch = session.submit(PromptRequest::new(workflow)).await?;
    let mut outcome = None;
    while let Some(event) = watch.next().await {
        match event {
            Event::Queued { .. } => bar.say("queued"),
            Event::Started => bar.say("started"),
            Event::Progress { value, max, .. } => {
                bar.fraction(value / max.max(1.0));
                bar.say(format!("{value:.0}/{max:.0}"));
            }
            Event::Finished(end) => outcome = Some(end),
            _ => {}
        }
    }
    let prompt_id = watch.prompt_id().clone();
    let success = match outcome.context("the watch ended without an outcome")?.into_result(&prompt_id) {
        Ok(success) => success,
        Err(error) => {
            bar.abandon("failed");
            session.close().await;
            return Err(error.into());
        }
    };
    bar.done("done");
    tokio::fs::create_dir_all(out)
        .await
        .with_context(|| format!("cannot make the folder {}", out.display()))?;
    let mut files: Vec<PathBuf> = Vec::new();
    for output in success.outputs.files() {
        let path = follow::free_path(out, &output.filename);
        let mut file = tokio::fs::File::create(&path)
            .await
            .with_context(|| format!("cannot write {}", path.display()))?;
        session.client().view(&FileRef::from(output)).await?.write_to(&mut file).await?;
        files.push(path);
    }
    session.close().await;
    if json {
        ui::json(&json!({"prompt_id": prompt_id.to_string(), "status": "completed", "saved": files}))?;
    } else {
        files.iter().try_for_each(|file| ui::line(file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
