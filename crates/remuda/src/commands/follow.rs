//! A task's way to its end, as a bar; then its files.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use indicatif::MultiProgress;
use serde_json::{Value, json};

use crate::api::{Api, Events, TaskView};
use crate::ui::{self, TaskBar};

/// Follows a task to its end, fetches its files if a folder is given, says what came of it.
/// Exit codes: 0 completed, 1 failed, 5 cancelled.
pub(crate) async fn to_the_end(
    api: &Api,
    id: &str,
    out: Option<&Path>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let task = wait(api, id, json, None).await?;
    let mut files = Vec::new();
    if let Some(out) = out.filter(|_| task.status == "completed") {
        files = fetch(api, &task, out).await?;
    }
    report(api, &task, &files, json)?;
    Ok(match task.status.as_str() {
        "completed" => ExitCode::SUCCESS,
        "cancelled" => ExitCode::from(5),
        _ => ExitCode::FAILURE,
    })
}

/// Shows what happens to all tasks, after an event or from now on, until somebody stops it.
pub(crate) async fn all(api: &Api, after: Option<String>, json: bool) -> anyhow::Result<ExitCode> {
    let mut events = Events::of_all(api.clone(), after);
    while let Some(signal) = events.next().await? {
        let text = |name: &str| signal.data[name].as_str().unwrap_or_default();
        if json {
            let mut event = signal.data.clone();
            event["id"] = json!(events.last());
            ui::json(&event)?;
        } else {
            ui::line(format_args!("{}  {}  {}", text("at"), text("task"), text("kind").replace('_', " ")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Follows a task to its end with a bar, among others if there are some.
pub(crate) async fn wait(
    api: &Api,
    id: &str,
    quiet: bool,
    among: Option<&MultiProgress>,
) -> anyhow::Result<TaskView> {
    let mut task = api.task(id).await?;
    let name = task.workflow_id.clone().unwrap_or_else(|| ui::short_id(id).to_owned());
    let bar = TaskBar::new(&name, quiet, among);
    while !task.is_terminal() {
        show(&bar, &task);
        let mut events = Events::new(api.clone(), id);
        while let Some(signal) = events.next().await? {
            match signal.kind.as_str() {
                "progress" => show_progress(&bar, &signal.data),
                "state" => show_state(&bar, &signal.data),
                _ => {}
            }
        }
        task = api.task(id).await?;
    }
    match task.status.as_str() {
        "completed" => bar.done("done"),
        other => bar.abandon(other),
    }
    Ok(task)
}

fn show(bar: &TaskBar, task: &TaskView) {
    match (&task.position, task.status.as_str()) {
        (Some(position), "pending") => bar.say(format!("{} before it", position.ahead)),
        (None, "pending") => bar.say(task.reason.clone().unwrap_or_else(|| "pending".to_owned())),
        _ => bar.say(task.worker_id.clone().unwrap_or_else(|| task.status.clone())),
    }
    bar.fraction(task.progress.unwrap_or(0.0));
}

fn show_progress(bar: &TaskBar, data: &Value) {
    bar.fraction(data["fraction"].as_f64().unwrap_or(0.0));
    if let (Some(value), Some(max)) = (data["value"].as_f64(), data["max"].as_f64()) {
        let node = data["node"].as_str().map(|node| format!("node {node} · ")).unwrap_or_default();
        bar.say(format!("{node}{value:.0}/{max:.0}"));
    }
}

fn show_state(bar: &TaskBar, data: &Value) {
    let kind = data["kind"].as_str().unwrap_or_default();
    let worker = data["data"]["worker"].as_str();
    match (kind, worker) {
        ("claimed" | "adopted", Some(worker)) => bar.say(format!("on {worker}")),
        ("lost" | "retry_scheduled", _) => {
            let why = data["data"]["error"]["message"].as_str().unwrap_or("an attempt ended badly");
            bar.above(&format!("  {why}; trying again"));
        }
        _ => bar.say(kind.replace('_', " ")),
    }
}

/// Where a file can go without taking the place of another: a name that is taken gets a number. A name of the server never
/// leaves the folder.
pub(super) fn free_path(folder: &Path, name: &str) -> PathBuf {
    let name = Path::new(Path::new(name).file_name().unwrap_or("output".as_ref()));
    let stem = name.file_stem().unwrap_or_default().to_string_lossy();
    let ending = name.extension().map_or(String::new(), |ending| format!(".{}", ending.to_string_lossy()));
    let numbered = (1..).map(|n| folder.join(format!("{stem} ({n}){ending}")));
    let mut paths = std::iter::once(folder.join(name)).chain(numbered);
    paths.find(|path| !path.exists()).unwrap_or_else(|| folder.join(name))
}

/// Downloads every output.
async fn fetch(api: &Api, task: &TaskView, out: &Path) -> anyhow::Result<Vec<PathBuf>> {
    tokio::fs::create_dir_all(out)
        .await
        .with_context(|| format!("cannot make the folder {}", out.display()))?;
    let mut files = Vec::new();
    for output in task.outputs() {
        let path = free_path(out, &output.filename);
        api.download(&output.url, &path).await?;
        files.push(path);
    }
    Ok(files)
}

fn report(api: &Api, task: &TaskView, files: &[PathBuf], json: bool) -> anyhow::Result<()> {
    if json {
        let mut document = serde_json::to_value(task)?;
        document["saved"] = json!(files);
        return ui::json(&document);
    }
    match task.status.as_str() {
        "completed" if files.is_empty() => {
            for output in task.outputs() {
                let url = api.base().join(&output.url).map_or_else(|_| output.url.clone(), String::from);
                ui::line(format_args!("{url}  {} {}", output.mime, ui::bytes(output.size)))?;
            }
            if task.outputs().is_empty() {
                ui::note("completed; it left no files");
            }
        }
        "completed" => files.iter().try_for_each(|file| ui::line(file.display()))?,
        "cancelled" => ui::note("cancelled"),
        _ => {
            let class = task.error_class.as_deref().map(|class| format!(" ({class})")).unwrap_or_default();
            ui::note(format_args!(
                "failed: {}{class}",
                task.error.as_deref().unwrap_or("no reason was given")
            ));
            ui::note(format_args!("try it again with: remuda retry {}", task.id));
        }
    }
    Ok(())
}
