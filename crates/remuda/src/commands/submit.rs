//! `remuda submit`: put a task into the queue.

use std::path::PathBuf;
use std::process::ExitCode;

use reqwest::Method;
use serde_json::{Map, Value, json, value::RawValue};

use super::follow;
use super::workflow_file::WorkflowArgs;
use crate::api::{Api, TaskView};
use crate::config::{ClientFlags, Settings};
use crate::ui;

/// What a task is to be.
#[derive(Debug, clap::Args)]
pub(crate) struct TaskArgs {
    /// How urgent: 0 (lowest) to 9 (highest)
    #[arg(long, value_name = "0-9", value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
    /// Your name for the workflow; the file's name if absent
    #[arg(long, value_name = "NAME")]
    workflow_id: Option<String>,
    /// A label that the worker must have; may be given several times
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// Do not start before this moment, such as 2026-11-15T12:00:00Z
    #[arg(long, value_name = "TIME")]
    not_before: Option<jiff::Timestamp>,
    /// When it must be done; a task that still waits or renders then fails
    #[arg(long, value_name = "TIME")]
    deadline: Option<jiff::Timestamp>,
    /// How long it may render, in seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u32>,
    /// How often a failed task is retried at most; 0 for not at all
    #[arg(long, value_name = "N")]
    max_retries: Option<u32>,
    /// Submitting twice with the same key creates only one task
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// What can be set on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    workflow: WorkflowArgs,
    #[command(flatten)]
    task: TaskArgs,
    /// Wait for the end, with a progress bar
    #[arg(long)]
    wait: bool,
    /// Wait for the end and save the files in this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ClientFlags,
}

/// Puts a task into a server's queue.
pub(crate) async fn submit(api: &Api, workflow: &WorkflowArgs, task: &TaskArgs) -> anyhow::Result<TaskView> {
    let graph = workflow.read().await?;
    let mut inputs = Map::new();
    for input in &workflow.inputs {
        let asset = api.upload(std::path::Path::new(&input.value)).await?;
        inputs.insert(format!("{}.{}", input.node, input.input), json!(format!("asset:{}", asset.sha256)));
    }
    let mut body: Map<String, Value> = Map::new();
    let name = task.workflow_id.clone().unwrap_or_else(|| workflow.name());
    body.insert("workflow_id".to_owned(), name.into());
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    put("priority", task.priority.map(Value::from));
    put("labels", (!task.labels.is_empty()).then(|| json!(task.labels)));
    put("inputs", (!inputs.is_empty()).then_some(Value::Object(inputs)));
    put("not_before", task.not_before.map(|moment| json!(moment)));
    put("deadline", task.deadline.map(|moment| json!(moment)));
    put("timeout_s", task.timeout.map(Value::from));
    put("max_retries", task.max_retries.map(Value::from));
    // The graph's own bytes go in last, so that nothing in it is printed anew.
    let payload: &RawValue = serde_json::from_str(graph.as_str())?;
    let mut text = serde_json::to_string(&body)?;
    text.pop();
    text.push_str(&format!(",\"payload\":{payload}}}"));

    let mut request =
        api.request(Method::POST, "api/v1/tasks")?.header("content-type", "application/json").body(text);
    if let Some(key) = &task.idempotency_key {
        request = request.header("idempotency-key", key);
    }
    Ok(api.json(request).await?)
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(&args.flags.sources())?;
    let api = super::api(&settings)?;
    let task = submit(&api, &args.workflow, &args.task).await?;
    for warning in &task.warnings {
        ui::note(format_args!("warning: {warning}"));
    }
    if args.wait || args.out.is_some() {
        return follow::to_the_end(&api, &task.id, args.out.as_deref(), args.json).await;
    }
    if args.json {
        ui::json(&task)?;
    } else {
        ui::line(&task.id)?;
        ui::note(format_args!("{}; follow it with: remuda watch {}", task.status, task.id));
    }
    Ok(ExitCode::SUCCESS)
}
