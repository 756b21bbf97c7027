//! What a task of LittleHorse costs beside the render: our worker, and two that were written with the official Python SDK.
//!
//! All are processes of their own with one slot, serve the same double of a LittleHorse server and submit to the same
//! simulated ComfyUI. Those two run in this process, so that all times are of one clock.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use comfyui_sim::{SimConfig, Simulator};
use littlehorse_double::proto::report_task_run::Result as Outcome;
use littlehorse_double::proto::variable_value::Value as Kind;
use littlehorse_double::proto::{ReportTaskRun, TaskRunId, TaskStatus};
use littlehorse_double::{Double, Message, NewRun, Options, What};
use remuda_testbed::process::Program;
use serde_json::{Value, json};

use crate::floor::round_trips;
use crate::programs::beside;
use crate::table::{Row, Sample};
use crate::usage;

const TEXT: &str = "LittleHorse: overhead per task, a line of text, one task after the other";
const RESTED: &str = "LittleHorse: the same, each task after a rest of 5 ms";
const PICTURE: &str = "LittleHorse: a picture, one task after the other";
/// Tasks of each worker that warm connections and caches.
const WARM_UP: usize = 50;
/// All take turns in blocks of this many tasks.
const BLOCK: usize = 25;
/// Between two blocks, so that nothing of one worker's falls into the turn of the other.
const REST: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(30);
/// The Python that has the SDK; `cargo xtask bench` installs it.
const PYTHON: &str = "REMUDA_BENCH_PYTHON";
const SCRIPT: &str = include_str!("../python/worker.py");
/// How many times less than with the official SDK it has to be.
const TARGET: f64 = 10.0;
const LESS: &str = "so many times less than the Python SDK";
const LESS_THAN_EACH: &str = "so many times less than the Python SDK, connecting for each task";

/// Where Python is, if it was installed.
pub(crate) fn python() -> Option<PathBuf> {
    std::env::var_os(PYTHON).map(PathBuf::from)
}

pub(crate) async fn measure(folder: &Path, python: &Path, rounds: usize) -> Result<Vec<Row>> {
    let stage = Stage::start(folder, python).await?;
    let mut rows = vec![floor(TEXT, Duration::ZERO, rounds).await?];
    let compared = stage.compare("text", text, rounds, BLOCK).await?;
    rows.extend(compared.rows(TEXT));
    rows.push(Row::at_least(TEXT, LESS, compared.ratio(Who::Python), "", TARGET));
    rows.push(compared.fact(TEXT));
    rows.push(floor(RESTED, REST, rounds).await?);
    let compared = stage.compare("rested", text, rounds, 1).await?;
    rows.extend(compared.rows(RESTED));
    rows.push(Row::fact(RESTED, LESS, compared.ratio(Who::Python), ""));
    rows.push(compared.fact(RESTED));
    let compared = stage.compare("picture", picture, rounds / 2, BLOCK).await?;
    rows.extend(compared.rows(PICTURE));
    rows.push(Row::fact(PICTURE, LESS, compared.ratio(Who::Python), ""));
    rows.push(compared.fact(PICTURE));
    stage.stop().await?;
    Ok(rows)
}

/// What both stages need at least. The task, the submission; the frame that tells the end, the look into the history, its
/// answer, the report.
async fn floor(group: &'static str, rest: Duration, rounds: usize) -> Result<Row> {
    let six = round_trips(3, rest, rounds).await?;
    Ok(Row::fact(group, "six messages between two processes, median", six.median(), "ms"))
}

/// A graph that leaves a line of text, and no files.
fn text(mark: &str) -> Value {
    json!({"1": {"class_type": "RigText", "inputs": {"text": mark}}})
}

/// A graph that leaves a small picture.
fn picture(mark: &str) -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 255}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": mark}},
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Remuda,
    /// With connections that it keeps.
    Python,
    /// With connections for each task.
    PythonEach,
}

impl Who {
    /// In the order of their numbers.
    const ALL: [Who; 3] = [Who::Remuda, Who::Python, Who::PythonEach];

    /// Each serves a TaskDef of its own, so that it is known who gets what.
    fn task(self) -> &'static str {
        match self {
            Who::Remuda => "bench-remuda",
            Who::Python => "bench-python",
            Who::PythonEach => "bench-python-each",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Who::Remuda => "Remuda",
            Who::Python => "Python SDK",
            Who::PythonEach => "Python SDK, connecting",
        }
    }
}

/// Of one worker, in milliseconds.
struct Stages {
    /// From the moment that the server hands out the task until ComfyUI has read the submission.
    before: Sample,
    /// From the moment that ComfyUI has the prompt in its history until the server has read the report.
    after: Sample,
    /// Time of the processor for a task, all in all.
    cpu: f64,
}

impl Stages {
    fn new(spans: &[(f64, f64)], cpu_us: f64) -> Self {
        Self {
            cpu: cpu_us / 1e3 / spans.len().max(1) as f64,
            before: Sample::new(spans.iter().map(|(before, _)| *before).collect()),
            after: Sample::new(spans.iter().map(|(_, after)| *after).collect()),
        }
    }

    fn sum(&self) -> f64 {
        self.before.median() + self.after.median()
    }

    fn rows(&self, group: &'static str, who: Who) -> Vec<Row> {
        let row = |what: &str, value| Row::fact(group, format!("{}, {what}", who.name()), value, "ms");
        vec![
            row("poll to submit, median", self.before.median()),
            row("poll to submit, 99 of 100 within", self.before.p99()),
            row("end to report, median", self.after.median()),
            row("end to report, 99 of 100 within", self.after.p99()),
            row("both medians together", self.sum()),
            row("processor time per task", self.cpu),
        ]
    }
}

struct Compared([Stages; Who::ALL.len()]);

impl Compared {
    fn ratio(&self, to: Who) -> f64 {
        self.0[to as usize].sum() / self.0[Who::Remuda as usize].sum()
    }

    fn rows(&self, group: &'static str) -> Vec<Row> {
        Who::ALL.iter().flat_map(|who| self.0[*who as usize].rows(group, *who)).collect()
    }

    fn fact(&self, group: &'static str) -> Row {
        Row::fact(group, LESS_THAN_EACH, self.ratio(Who::PythonEach), "")
    }
}

struct Stage {
    double: Double,
    sim: Simulator,
    workers: [Program; Who::ALL.len()],
}

impl Stage {
    async fn start(folder: &Path, python: &Path) -> Result<Stage> {
        let config = SimConfig {
            base_dir: Some(folder.join("littlehorse-sim")),
            step: Duration::ZERO,
            model_load: Duration::ZERO,
            ..SimConfig::default()
        };
        let sim = Simulator::start(config).await?;
        let double = Double::start(Options::default()).await?;
        let script = folder.join("worker.py");
        std::fs::write(&script, SCRIPT)?;
        let data = folder.join("littlehorse-data");
        let workers = Who::ALL.map(|who| {
            let mut command = match who {
                Who::Remuda => {
                    let mut command = Command::new(beside("remuda")?);
                    command.args(["worker", "--source", "littlehorse", "--data"]).arg(&data);
                    command
                }
                Who::Python | Who::PythonEach => {
                    let mut command = Command::new(python);
                    command.arg(&script).env("CONNECT", if who == Who::Python { "once" } else { "each" });
                    command
                }
            };
            command
                .env("LHC_API_HOST", "127.0.0.1")
                .env("LHC_API_PORT", double.port(0).to_string())
                .env("LHW_TASK_NAME", who.task())
                .env("LHW_NUM_WORKER_THREADS", "1")
                .env("COMFYUI_BASE_URL", sim.url())
                .env("COMFYUI_OUTPUT_DIR", sim.base_dir().join("output"));
            anyhow::Ok(Program::spawn(command)?)
        });
        let [ours, kept, each] = workers;
        let mut stage = Stage { double, sim, workers: [ours?, kept?, each?] };
        if tokio::time::timeout(PATIENCE, stage.double.until_parked(0, Who::ALL.len())).await.is_err() {
            for worker in &mut stage.workers {
                eprintln!("{}", worker.output().join("\n"));
            }
            bail!("a worker does not ask for tasks");
        }
        Ok(stage)
    }

    /// In turns of `block` tasks, each worker first as often as the others.
    async fn compare(
        &self,
        kind: &str,
        graph: fn(&str) -> Value,
        rounds: usize,
        block: usize,
    ) -> Result<Compared> {
        let mut spans = Who::ALL.map(|_| Vec::new());
        let mut before = self.cpu_us()?;
        let warm = WARM_UP.div_ceil(block);
        for turn in 0..warm + rounds.div_ceil(block) {
            if turn == warm {
                before = self.cpu_us()?;
            }
            for place in 0..Who::ALL.len() {
                let who = Who::ALL[(turn + place) % Who::ALL.len()];
                tokio::time::sleep(REST).await;
                for task in 0..block {
                    let name = format!("{kind}-{turn}-{task}");
                    let span = self.task(who, &name, graph).await?;
                    if turn >= warm {
                        spans[who as usize].push(span);
                    }
                }
            }
        }
        let after = self.cpu_us()?;
        let stages = |who: Who| Stages::new(&spans[who as usize], after[who as usize] - before[who as usize]);
        Ok(Compared(Who::ALL.map(stages)))
    }

    /// Processor time of each worker so far.
    fn cpu_us(&self) -> Result<[f64; Who::ALL.len()]> {
        let [ours, kept, each] = self.workers.each_ref().map(|worker| usage::family_cpu_us(worker.id()));
        Ok([ours?, kept?, each?])
    }

    /// One task: what it took before and after the render, in milliseconds.
    async fn task(&self, who: Who, name: &str, graph: fn(&str) -> Value) -> Result<(f64, f64)> {
        let asked = tokio::time::timeout(PATIENCE, self.double.until_parked(0, Who::ALL.len())).await;
        asked.context("a worker asks for no more tasks")?;
        let name = format!("{}-{name}", who.task());
        let place = self.double.journal().len();
        let run = self.double.schedule(NewRun::json(&name, graph(&name).to_string()).task(who.task()));
        let ended = tokio::time::timeout(PATIENCE, run.ended()).await.context("a task does not end")?;
        ensure!(ended.status() == TaskStatus::TaskSuccess, "a task of {} failed: {ended:?}", who.name());
        let (handed_out, reported, prompt) = self.seen(place, run.id()).await?;
        let timeline = self.sim.timeline();
        let span = timeline.executions.iter().rev().find(|span| span.prompt_id == prompt);
        let span = span.with_context(|| format!("the simulator knows nothing of {prompt}"))?;
        let moment = |us| timeline.zero + Duration::from_micros(us);
        let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
        Ok((ms(handed_out, moment(span.received_us)), ms(moment(span.told_us), reported)))
    }

    /// When a task was handed out, when its report came, and the prompt that the report names.
    async fn seen(&self, place: usize, id: &TaskRunId) -> Result<(Instant, Instant, String)> {
        let journal = self.double.journal();
        let found = journal.until(|events| {
            let (mut handed_out, mut report) = (None, None);
            for event in events.iter().skip(place) {
                match &event.what {
                    What::Told(Message::PollTaskResponse(told)) => {
                        let task = told.result.as_ref().and_then(|task| task.task_run_id.as_ref());
                        if task == Some(id) {
                            handed_out = Some(journal.start() + event.at);
                        }
                    }
                    What::Call { message: Message::ReportTaskRun(said), .. }
                        if said.task_run_id.as_ref() == Some(id) =>
                    {
                        report = Some((journal.start() + event.at, said.clone()));
                    }
                    _ => {}
                }
            }
            Some((handed_out?, report?))
        });
        let (handed_out, (reported, report)) =
            tokio::time::timeout(PATIENCE, found).await.context("a report that nobody saw")?;
        Ok((handed_out, reported, prompt_of(&report)?))
    }

    async fn stop(self) -> Result<()> {
        let [mut ours, kept, each] = self.workers;
        ours.term()?;
        ours.wait_exit(PATIENCE).await?;
        // The SDK takes up to a minute to leave.
        drop((kept, each));
        self.sim.shutdown().await;
        self.double.stop().await?;
        Ok(())
    }
}

fn prompt_of(report: &ReportTaskRun) -> Result<String> {
    let Some(Outcome::Output(output)) = &report.result else { bail!("a report without an output") };
    let Some(Kind::JsonObj(text)) = &output.value else { bail!("an output that is no object") };
    let output: HashMap<String, Value> = serde_json::from_str(text)?;
    let prompt = output.get("prompt_id").and_then(Value::as_str);
    Ok(prompt.context("an output without its prompt")?.to_owned())
}
