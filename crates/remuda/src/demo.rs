//! `remuda demo`: what the product is about, on a bare machine.
//!
//! Two simulated ComfyUIs, a handful of tasks, each rendered by whichever is free, with live progress.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use comfyui::{Client, Event, FileRef, PromptRequest, Session, SessionOptions, Success, Workflow};
use comfyui_sim::{SimConfig, Simulator};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tokio::task::JoinSet;

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
struct Task {
    name: &'static str,
    workflow: Workflow,
}

/// What came of it.
struct Rendered {
    /// Its place among the tasks.
    number: usize,
    name: &'static str,
    worker: String,
    seconds: f64,
    files: Vec<PathBuf>,
}

fn tasks() -> Result<Vec<Task>> {
    let picture = || Workflow::parse(include_str!("../workflows/text-to-image.json"));
    let variation = |prompt: &str, seed: u64| -> Result<Workflow> {
        Ok(picture()?.with_input("6", "text", &prompt)?.with_input("3", "seed", &seed)?)
    };
    Ok(vec![
        Task { name: "text to image", workflow: picture()? },
        Task {
            name: "fox",
            workflow: variation("a red fox in the snow, golden hour", 18_446_744_073_709_551_615)?,
        },
        Task { name: "animation", workflow: Workflow::parse(include_str!("../workflows/animation.json"))? },
        Task { name: "lighthouse", workflow: variation("a lighthouse in a storm, oil painting", 7)? },
        Task { name: "video", workflow: Workflow::parse(include_str!("../workflows/video.json"))? },
        Task { name: "horses", workflow: variation("wild horses on a beach, wide angle", 2026)? },
    ])
}

/// Runs the demo.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let begun = std::time::Instant::now();
    tokio::fs::create_dir_all(&args.out)
        .await
        .with_context(|| format!("cannot make the folder {}", args.out.display()))?;
    let queue = Arc::new(Mutex::new(tasks()?.into_iter().enumerate().collect()));
    let bars = MultiProgress::with_draw_target(if args.json {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    });

    let mut simulators = Vec::new();
    let mut workers = JoinSet::new();
    for number in 1..=2 {
        let config = SimConfig {
            step: Duration::from_millis(25),
            model_load: Duration::from_millis(250),
            ..SimConfig::default()
        };
        let simulator = Simulator::start(config).await.context("a simulated ComfyUI did not start")?;
        let worker = Worker {
            name: format!("worker {number}"),
            url: simulator.url(),
            queue: Arc::clone(&queue),
            bars: bars.clone(),
            out: args.out.clone(),
        };
        simulators.push(simulator);
        workers.spawn(worker.run());
    }
    let mut rendered = Vec::new();
    while let Some(worker) = workers.join_next().await {
        rendered.extend(worker.context("a worker ended abnormally")??);
    }
    for simulator in simulators {
        simulator.shutdown().await;
    }
    rendered.sort_by_key(|task| task.number);
    report(&args, &rendered, begun.elapsed());
    Ok(ExitCode::SUCCESS)
}

#[allow(clippy::print_stdout, reason = "the result of a command")]
fn report(args: &Args, rendered: &[Rendered], took: Duration) {
    if args.json {
        let tasks: Vec<_> = rendered
            .iter()
            .map(|task| {
                json!({"task": task.name, "worker": task.worker, "seconds": task.seconds, "files": task.files})
            })
            .collect();
        println!("{}", json!({"tasks": tasks, "seconds": took.as_secs_f64()}));
        return;
    }
    println!("{:<15} {:<10} {:>7}  file", "task", "worker", "time");
    for task in rendered {
        for file in &task.files {
            println!("{:<15} {:<10} {:>6.2}s  {}", task.name, task.worker, task.seconds, file.display());
        }
    }
    println!(
        "\n{} tasks on 2 simulated ComfyUIs in {:.1} s. Open {} to see one.",
        rendered.len(),
        took.as_secs_f64(),
        rendered.iter().flat_map(|task| &task.files).next().map_or(&args.out, |file| file).display()
    );
    println!("A simulated ComfyUI of your own: remuda sim");
}

/// One ComfyUI and the loop that feeds it.
struct Worker {
    name: String,
    url: String,
    queue: Arc<Mutex<VecDeque<(usize, Task)>>>,
    bars: MultiProgress,
    out: PathBuf,
}

impl Worker {
    async fn run(self) -> Result<Vec<Rendered>> {
        let session = Session::open(Client::new(&self.url)?, SessionOptions::default()).await?;
        let mut rendered = Vec::new();
        while let Some((number, task)) = self.next_task() {
            rendered.push(self.render(&session, number, task).await?);
        }
        session.close().await;
        Ok(rendered)
    }

    fn next_task(&self) -> Option<(usize, Task)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    async fn render(&self, session: &Session, number: usize, task: Task) -> Result<Rendered> {
        let begun = std::time::Instant::now();
        let bar = self.bars.add(ProgressBar::new(1).with_style(style()?));
        bar.set_prefix(format!("{} · {}", self.name, task.name));
        let mut watch = session
            .submit(PromptRequest::new(task.workflow))
            .await
            .with_context(|| format!("task {:?} was not accepted", task.name))?;
        while let Some(event) = watch.next().await {
            match event {
                Event::Queued { .. } => bar.set_message("queued"),
                Event::Started => bar.set_message("loading"),
                Event::Progress { value, max, .. } => {
                    bar.set_length(max as u64);
                    bar.set_position(value as u64);
                    bar.set_message("sampling");
                }
                Event::Finished(outcome) => {
                    let success = outcome
                        .into_result(watch.prompt_id())
                        .with_context(|| format!("task {:?} failed", task.name))?;
                    let files = self.fetch(session.client(), task.name, &success).await?;
                    bar.finish_with_message("done");
                    return Ok(Rendered {
                        number,
                        name: task.name,
                        worker: self.name.clone(),
                        seconds: begun.elapsed().as_secs_f64(),
                        files,
                    });
                }
                _ => {}
            }
        }
        anyhow::bail!("task {:?} ended without an outcome", task.name)
    }

    async fn fetch(&self, client: &Client, task: &str, success: &Success) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for (number, output) in success.outputs.files().enumerate() {
            let ending = Path::new(&output.filename).extension().unwrap_or_default().to_string_lossy();
            let path = self.out.join(format!("{}-{number}.{ending}", task.replace(' ', "-")));
            let mut file = tokio::fs::File::create(&path)
                .await
                .with_context(|| format!("cannot write {}", path.display()))?;
            client.view(&FileRef::from(output)).await?.write_to(&mut file).await?;
            files.push(path);
        }
        Ok(files)
    }
}

fn style() -> Result<ProgressStyle> {
    Ok(ProgressStyle::with_template("{prefix:26} {bar:32.cyan/blue} {pos:>3}/{len:<3} {msg}")?
        .progress_chars("━╸─"))
}
