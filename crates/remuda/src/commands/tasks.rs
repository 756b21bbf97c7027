//! `remuda status`, `list`, `watch`, `cancel`, `retry`: tasks that are there.

use std::path::PathBuf;
use std::process::ExitCode;

use jiff::Timestamp;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::follow;
use crate::api::{TaskPage, TaskView, segment};
use crate::config::{ClientFlags, Settings};
use crate::ui::{self, Table};

/// One task.
#[derive(Debug, clap::Args)]
pub(crate) struct OneTask {
    /// The task's id
    #[arg(value_name = "TASK")]
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ClientFlags,
}

/// Several tasks.
#[derive(Debug, clap::Args)]
pub(crate) struct ManyTasks {
    /// The tasks' ids
    #[arg(value_name = "TASK", required = true)]
    ids: Vec<String>,
    /// Print JSON, one document for each task
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ClientFlags,
}

/// What to follow.
#[derive(Debug, clap::Args)]
pub(crate) struct WatchArgs {
    /// The task's id; without one, everything that happens is shown until you stop it
    #[arg(value_name = "TASK")]
    id: Option<String>,
    /// Save its files in this folder when it is done
    #[arg(long, value_name = "DIR", requires = "id")]
    out: Option<PathBuf>,
    /// Without a task: begin after this event, or with the "first" one that is kept
    #[arg(long, value_name = "EVENT", conflicts_with = "id")]
    after: Option<String>,
    /// Print JSON: the task at its end; without a task, every event on a line of its own
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ClientFlags,
}

/// What to list.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only tasks in this state
    #[arg(long, value_parser = ["pending", "running", "completed", "failed", "cancelled"])]
    status: Option<String>,
    /// Only tasks with this workflow id
    #[arg(long, value_name = "NAME")]
    workflow_id: Option<String>,
    /// How many to show at most, newest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u32,
    /// Only tasks older than this one
    #[arg(long, value_name = "TASK")]
    before: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ClientFlags,
}

/// Shows one task.
pub(crate) async fn status(args: OneTask) -> anyhow::Result<ExitCode> {
    let api = super::api(&Settings::load(&args.flags.sources())?)?;
    if args.json {
        let mut document: Value = api.get(&format!("api/v1/tasks/{}", segment(&args.id))).await?;
        if let Some(fields) = document.as_object_mut() {
            fields.remove("payload");
        }
        ui::json(&document)?;
        return Ok(ExitCode::SUCCESS);
    }
    let task = api.task(&args.id).await?;
    let now = Timestamp::now();
    let mut rows: Vec<(&str, String)> = vec![("task", task.id.clone())];
    let reason = task.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    rows.push(("status", format!("{}{reason}", ui::status(&task.status))));
    rows.extend(task.workflow_id.clone().map(|name| ("workflow", name)));
    rows.push(("priority", task.priority.to_string()));
    rows.push(("submitted", ui::ago(task.created_at, now)));
    if let Some(position) = &task.position {
        let about = if position.exact { "" } else { "about " };
        rows.push(("before it", format!("{about}{} tasks", position.ahead)));
    }
    if let (Some(progress), "running") = (task.progress, task.status.as_str()) {
        rows.push(("progress", format!("{:.0} %", progress * 100.0)));
    }
    rows.extend(task.worker_id.clone().map(|worker| ("worker", worker)));
    rows.extend(task.started_at.map(|moment| ("started", ui::ago(moment, now))));
    rows.extend(task.completed_at.map(|moment| ("ended", ui::ago(moment, now))));
    if task.retry_count > 0 {
        rows.push(("retries", format!("{} of {}", task.retry_count, task.max_retries)));
    }
    rows.extend(task.error.clone().map(|error| ("error", error)));
    for output in task.outputs() {
        let url = api.base().join(&output.url).map_or_else(|_| output.url.clone(), String::from);
        rows.push(("output", format!("{url}  {} {}", output.mime, ui::bytes(output.size))));
    }
    for (name, value) in rows {
        ui::line(format_args!("{:<10} {value}", console::style(name).dim()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists tasks.
pub(crate) async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let api = super::api(&Settings::load(&args.flags.sources())?)?;
    let mut query: Vec<(&str, String)> = vec![("limit", args.limit.to_string())];
    query.extend(args.status.map(|status| ("status", status)));
    query.extend(args.workflow_id.map(|name| ("workflow_id", name)));
    query.extend(args.before.map(|id| ("before", id)));
    let request = api.request(Method::GET, "api/v1/tasks")?.query(&query);
    if args.json {
        ui::json(&api.json::<Value>(request).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let page: TaskPage = api.json(request).await?;
    let now = Timestamp::now();
    let mut table =
        Table::new(&["task", "status", "pri", "workflow", "submitted", "took", "worker", "error"]);
    for task in &page.tasks {
        table.row(row(task, now));
    }
    if table.is_empty() {
        ui::note("no tasks; submit one with: remuda submit FILE.json");
    } else {
        table.print()?;
    }
    if let Some(next) = page.next {
        ui::note(format_args!("older ones: remuda list --before {next}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn row(task: &TaskView, now: Timestamp) -> Vec<String> {
    let took = task.started_at.map(|begun| {
        let end = task.completed_at.unwrap_or(now);
        ui::seconds(end.duration_since(begun).unsigned_abs())
    });
    vec![
        task.id.clone(),
        ui::status(&task.status).to_string(),
        task.priority.to_string(),
        task.workflow_id.clone().unwrap_or_default(),
        ui::ago(task.created_at, now),
        took.unwrap_or_default(),
        // Where a waiting task was tried before is history, not news.
        task.worker_id.clone().filter(|_| task.status != "pending").unwrap_or_default(),
        task.error.as_deref().map(one_line).unwrap_or_default(),
    ]
}

/// Errors of ComfyUI may be whole pages; a table has one line for each.
fn one_line(error: &str) -> String {
    error.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Follows a task, or all of them.
pub(crate) async fn watch(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let api = super::api(&Settings::load(&args.flags.sources())?)?;
    match &args.id {
        Some(id) => follow::to_the_end(&api, id, args.out.as_deref(), args.json).await,
        None => follow::all(&api, args.after, args.json).await,
    }
}

/// Cancels tasks; the last one that could not be decides the exit code.
pub(crate) async fn cancel(args: ManyTasks) -> anyhow::Result<ExitCode> {
    let api = super::api(&Settings::load(&args.flags.sources())?)?;
    let mut code = ExitCode::SUCCESS;
    for id in &args.ids {
        let request = api.request(Method::DELETE, &format!("api/v1/tasks/{}", segment(id)))?;
        match api.send(request).await {
            Ok(answer) => {
                let stopping = answer.status() == StatusCode::ACCEPTED;
                if args.json {
                    ui::json(&serde_json::from_slice::<Value>(&answer.bytes().await?)?)?;
                } else {
                    ui::line(format_args!(
                        "{id} {}",
                        if stopping { "is being stopped" } else { "cancelled" }
                    ))?;
                }
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                ui::note(format_args!("{id}: {error}"));
                code = crate::api::exit_code(&error);
            }
        }
    }
    Ok(code)
}

/// Runs an ended task once more, as a new one, or a waiting one at once.
pub(crate) async fn retry(args: OneTask) -> anyhow::Result<ExitCode> {
    let api = super::api(&Settings::load(&args.flags.sources())?)?;
    let request = api.request(Method::POST, &format!("api/v1/tasks/{}/retry", segment(&args.id)))?;
    let task: TaskView = api.json(request).await?;
    if args.json {
        ui::json(&task)?;
    } else {
        ui::line(&task.id)?;
        ui::note(format_args!("{}; follow it with: remuda watch {}", task.status, task.id));
    }
    Ok(ExitCode::SUCCESS)
}
