//! `remuda demo`: what the product is about, on a bare machine.
//!
//! A whole Remuda in one process: the API, the durable queue, two workers with simulated ComfyUIs. A handful of tasks go
//! in through the API, as any client would send them, and their files come back the same way.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use comfyui::Workflow;
use indicatif::{MultiProgress, ProgressDrawTarget};
use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;

use crate::api::{Api, TaskView};
use crate::commands::follow;
use crate::config::{Given, Program, Settings, Sources};
use crate::instance::Instance;
use crate::ui::{self, Table};

/// How the demo runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder for the rendered files
    #[arg(long, default_value = "remuda-data/demo", value_name = "DIR")]
    out: PathBuf,
    /// Print one JSON document instead of progress bars
    #[arg(long)]
    json: bool,
}

/// One thing to render.
struct Order {
    name: &'static str,
    workflow: Workflow,
}

/// What came of it.
struct Rendered {
    name: &'static str,
    task: TaskView,
    files: Vec<PathBuf>,
}

fn orders() -> Result<Vec<Order>> {
    let picture = || Workflow::parse(include_str!("../workflows/text-to-image.json"));
    let variation = |prompt: &str, seed: u64| -> Result<Workflow> {
        Ok(picture()?.with_input("6", "text", &prompt)?.with_input("3", "seed", &seed)?)
    };
    Ok(vec![
        Order { name: "text-to-image", workflow: picture()? },
        Order {
            name: "fox",
            workflow: variation("a red fox in the snow, golden hour", 18_446_744_073_709_551_615)?,
        },
        Order { name: "animation", workflow: Workflow::parse(include_str!("../workflows/animation.json"))? },
        Order { name: "lighthouse", workflow: variation("a lighthouse in a storm, oil painting", 7)? },
        Order { name: "video", workflow: Workflow::parse(include_str!("../workflows/video.json"))? },
        Order { name: "horses", workflow: variation("wild horses on a beach, wide angle", 2026)? },
    ])
}

/// Runs the demo.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let begun = Instant::now();
    tokio::fs::create_dir_all(&args.out)
        .await
        .with_context(|| format!("cannot make the folder {}", args.out.display()))?;
    // The queue of a demo is not worth keeping; what it rendered is.
    let data = tempfile::tempdir().context("cannot make a temporary folder")?;
    let instance = Instance::start(&settings(data.path())?).await?;
    let api = Api::new(&format!("http://{}", instance.address()).parse()?, None)?;
    let rendered = render(&api, &args).await;
    instance.stop().await;
    let rendered = rendered?;
    report(&args, &rendered, begun.elapsed())?;
    let failed = rendered.iter().any(|one| one.task.status != "completed");
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Two simulated ComfyUIs, any free port, and nothing of the user's own settings.
fn settings(data: &Path) -> Result<Settings> {
    let data = data.to_str().context("the temporary folder has a strange name")?;
    let env = BTreeMap::from([("REMUDA_DATA", data), ("REMUDA_LISTEN", "127.0.0.1:0"), ("REMUDA_SIM", "2")]);
    let flags = Given::none(Program::Serve);
    Ok(Settings::load(&Sources { flags: &flags, env: &env, dir: data.into() })?)
}

async fn render(api: &Api, args: &Args) -> Result<Vec<Rendered>> {
    let target = if args.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bars = MultiProgress::with_draw_target(target);
    let mut under_way = JoinSet::new();
    for (number, order) in orders()?.into_iter().enumerate() {
        let body =
            format!(r#"{{"workflow_id":{},"payload":{}}}"#, json!(order.name), order.workflow.as_str());
        let request =
            api.request(Method::POST, "api/v1/tasks")?.header("content-type", "application/json").body(body);
        let task: TaskView = api.json(request).await?;
        let (api, bars, out, quiet) = (api.clone(), bars.clone(), args.out.clone(), args.json);
        under_way.spawn(async move {
            let task = follow::wait(&api, &task.id, quiet, Some(&bars)).await?;
            let mut files = Vec::new();
            for output in task.outputs() {
                let ending = Path::new(&output.filename).extension().unwrap_or_default().to_string_lossy();
                let path = out.join(format!("{}-{}.{ending}", order.name, output.n));
                api.download(&output.url, &path).await?;
                files.push(path);
            }
            anyhow::Ok((number, Rendered { name: order.name, task, files }))
        });
    }
    let mut rendered = Vec::new();
    while let Some(one) = under_way.join_next().await {
        rendered.push(one.context("a part of the demo ended abnormally")??);
    }
    rendered.sort_by_key(|(number, _)| *number);
    Ok(rendered.into_iter().map(|(_, one)| one).collect())
}

fn report(args: &Args, rendered: &[Rendered], took: Duration) -> Result<()> {
    if args.json {
        let tasks: Vec<_> = rendered
            .iter()
            .map(|one| {
                json!({
                    "task": one.name, "id": one.task.id, "status": one.task.status,
                    "worker": one.task.worker_id, "files": one.files,
                })
            })
            .collect();
        return ui::json(&json!({"tasks": tasks, "seconds": took.as_secs_f64()}));
    }
    let mut table = Table::new(&["task", "status", "worker", "took", "file"]);
    for one in rendered {
        let took = one
            .task
            .started_at
            .zip(one.task.completed_at)
            .map(|(begun, end)| ui::seconds(end.duration_since(begun).unsigned_abs()));
        let files: Vec<_> = one.files.iter().map(|file| file.display().to_string()).collect();
        table.row(vec![
            one.name.to_owned(),
            ui::status(&one.task.status).to_string(),
            one.task.worker_id.clone().unwrap_or_default(),
            took.unwrap_or_default(),
            if files.is_empty() { one.task.error.clone().unwrap_or_default() } else { files.join(" ") },
        ]);
    }
    table.print()?;
    let first = rendered.iter().flat_map(|one| &one.files).next().map_or(&args.out, |file| file).display();
    ui::line(format_args!(
        "\n{} tasks on 2 simulated ComfyUIs in {:.1} s. Open {first} to see one.",
        rendered.len(),
        took.as_secs_f64(),
    ))?;
    ui::line("A server of your own: remuda serve --sim 2, or --comfyui http://127.0.0.1:8188 for a real one.")
}
