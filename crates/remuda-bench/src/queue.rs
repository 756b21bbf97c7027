//! Submit, claim and complete, per second, at the store itself.
//!
//! Each of 64 callers has a worker of its own and does the three one after the other, each durable before the next
//! begins. A queue with 1,000 waiting tasks and one with many take turns, so that whatever else the machine and its disk
//! do hits both.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use remuda_core::transition::Ending;
use remuda_core::{Capabilities, Fence, NewTask, OutputFile, Sha256, TaskResult, WorkerId, WorkerSpec};
use remuda_store::{Acquired, ClaimRequest};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use crate::probe::Probe;
use crate::store::{Kind, Open, Place};
use crate::table::{Row, Sample};

const CALLERS: usize = 64;
/// Tasks in the small queue.
const FEW: u64 = 1_000;
/// Submissions at once while a queue is filled.
const FILLING: usize = 2_048;
const WORKFLOW_BYTES: usize = 2_048;
/// Durable writes beside each turn, to know the disk.
const PROBES: usize = 50;
const WARM_UP: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(4);

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Tasks in the large queue.
    pub(crate) waiting: u64,
    /// How often each queue gets its turn.
    pub(crate) windows: usize,
    /// Whether to say afterwards what the statements of PostgreSQL cost.
    pub(crate) profiled: bool,
}

pub(crate) async fn measure(kind: Kind, folder: &Path, plan: Plan) -> Result<Vec<Row>> {
    let group = match kind {
        Kind::Sqlite => "queue on SQLite, synchronous=FULL, 64 callers, workflows of 2 KiB",
        Kind::Postgres => "queue on PostgreSQL, fsync on, 64 callers, workflows of 2 KiB",
    };
    let place = Place::new(kind, folder, plan.profiled).await?;
    let few = place.open("few").await?;
    let many = place.open("many").await?;
    fill(&few, FEW).await?;
    let begun = Instant::now();
    fill(&many, plan.waiting).await?;
    let filling = plan.waiting as f64 / begun.elapsed().as_secs_f64();
    place.settle(&few).await?;
    place.settle(&many).await?;

    let (small, large) = (callers(&few).await?, callers(&many).await?);
    let (mut few_turns, mut many_turns) = (Vec::new(), Vec::new());
    let (mut probe, mut writes) = (Probe::new(folder)?, Vec::new());
    for _ in 0..plan.windows {
        for _ in 0..PROBES {
            writes.push(probe.commit()?);
        }
        few_turns.push(window(&place, &small).await?);
        many_turns.push(window(&place, &large).await?);
    }
    if plan.profiled {
        place.profile().await?.iter().for_each(|line| eprintln!("{line}"));
    }
    for (open, least) in [(&few, FEW), (&many, plan.waiting)] {
        let pending = open.store.counts(None).await?.pending;
        // A claim takes what a submission brought, so the queue stays as long as it was filled.
        anyhow::ensure!(pending >= least as i64, "only {pending} of {least} tasks are still waiting");
        open.store.close().await;
    }

    let median = |turns: &[Turn], of: fn(&Turn) -> f64| Sample::new(turns.iter().map(of).collect()).median();
    let rate = median(&few_turns, |turn| turn.rate);
    let large_rate = median(&many_turns, |turn| turn.rate);
    let name = format!("with {} waiting", plan.waiting);
    let mut rows = vec![
        Row::at_least(group, "submit + claim + complete", rate, "tasks/s", 5_000.0),
        Row::fact(
            group,
            "  processor time of this process",
            median(&few_turns, |turn| turn.own_us),
            "µs/task",
        ),
    ];
    if kind == Kind::Postgres {
        let server = median(&few_turns, |turn| turn.server_us);
        rows.push(Row::fact(group, "  processor time of PostgreSQL", server, "µs/task"));
    }
    rows.push(Row::fact(
        group,
        "  one round of a caller, on average",
        median(&few_turns, |turn| turn.round_ms),
        "ms",
    ));
    rows.push(Row::fact(group, format!("submit + claim + complete {name}"), large_rate, "tasks/s"));
    let cpu = median(&many_turns, |turn| turn.own_us + turn.server_us);
    rows.push(Row::fact(group, "  processor time, all processes", cpu, "µs/task"));
    rows.push(Row::at_least(group, format!("ratio: {name} to with 1000"), large_rate / rate, "", 0.9));
    let writes = Sample::new(writes);
    rows.push(Row::fact(group, "one durable write on this disk, median", writes.median(), "ms"));
    rows.push(Row::fact(group, "one durable write on this disk, 99 of 100 within", writes.p99(), "ms"));
    rows.push(Row::fact(group, "submissions alone, 2,048 at once", filling, "tasks/s"));
    Ok(rows)
}

/// Puts tasks into a store by its own front door.
async fn fill(open: &Open, tasks: u64) -> Result<()> {
    let submissions = stream::iter(0..tasks).map(|_| {
        let store = Arc::clone(&open.store);
        async move { store.submit(task()?).await.map(drop).context("cannot fill the store") }
    });
    submissions.buffer_unordered(FILLING).try_collect::<()>().await
}

/// A task with a graph of its own: the same nodes, and another prompt each time.
///
/// Made by putting strings together, because the time it takes is counted as the store's.
fn task() -> Result<NewTask> {
    static GRAPH: LazyLock<(String, String)> = LazyLock::new(|| {
        let graph = graph().to_string();
        let (before, after) = graph.split_once("PROMPT").unwrap_or((&graph, ""));
        (before.to_owned(), after.to_owned())
    });
    let (before, after) = &*GRAPH;
    let mut text = String::with_capacity(WORKFLOW_BYTES + 16);
    text.push_str(before);
    // Text that does not compress, as prompts hardly do: a database that packs values must not gain by it.
    while text.len() + after.len() < WORKFLOW_BYTES {
        // Writing to a String cannot fail.
        let _ = write!(text, "{:016x}", noise());
    }
    text.push_str(after);
    Ok(NewTask::new(RawValue::from_string(text)?))
}

/// Numbers without a pattern, at once (SplitMix64).
fn noise() -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    let state = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn graph() -> serde_json::Value {
    json!({
        "3": {"class_type": "KSampler", "inputs": {
            "seed": 1, "steps": 20, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0,
            "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]}},
        "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd_xl_base_1.0.safetensors"}},
        "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 1024, "height": 1024, "batch_size": 1}},
        "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "PROMPT", "clip": ["4", 1]}},
        "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurry, low quality", "clip": ["4", 1]}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
        "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "bench", "images": ["8", 0]}},
    })
}

/// What a completed task leaves: one picture.
fn result() -> TaskResult {
    let file = OutputFile {
        subfolder: String::new(),
        n: 0,
        key: "outputs/bench/0/bench_00001_.png".to_owned(),
        filename: "bench_00001_.png".to_owned(),
        node_id: "9".to_owned(),
        output: "images".to_owned(),
        file_type: "output".to_owned(),
        mime: "image/png".to_owned(),
        size: 1_234_567,
        sha256: Sha256::of(b"bench"),
    };
    let outputs =
        json!({"9": {"images": [{"filename": "bench_00001_.png", "subfolder": "", "type": "output"}]}});
    TaskResult { files: vec![file], outputs: outputs.into(), execution_ms: Some(1_000), node_errors: None }
}

/// A submitter and a worker in one.
#[derive(Debug, Clone)]
struct Caller {
    open: Open,
    worker: WorkerId,
    fence: Fence,
    capabilities: Arc<Capabilities>,
}

async fn callers(open: &Open) -> Result<Vec<Caller>> {
    let mut callers = Vec::with_capacity(CALLERS);
    for number in 0..CALLERS {
        let worker = WorkerId::new(format!("bench-{number}"))?;
        let spec = WorkerSpec {
            id: worker.clone(),
            endpoint: format!("http://127.0.0.1:1/{number}"),
            name: None,
            labels: Default::default(),
        };
        let fence = match open.store.acquire_worker(spec, open.owner).await? {
            Acquired::Yes(worker) => worker.fence,
            Acquired::HeldBy(worker) => bail!("{} is held by another process", worker.spec.id),
        };
        callers.push(Caller { open: open.clone(), worker, fence, capabilities: Arc::default() });
    }
    Ok(callers)
}

impl Caller {
    async fn round(&self) -> Result<()> {
        let store = &self.open.store;
        store.submit(task()?).await?;
        let request = ClaimRequest {
            owner: self.open.owner,
            worker: self.worker.clone(),
            worker_fence: self.fence,
            capabilities: Arc::clone(&self.capabilities),
            loaded: Vec::new(),
            ahead: false,
            gateway: None,
            wait: Duration::from_secs(30),
        };
        let claim = store.claim(request).await?.context("a task was submitted and none could be claimed")?;
        let ending = Ending::Completed { result: result(), gpu_ms: Some(1_000) };
        store.end(claim.lease.owner, claim.lease.reference(), ending).await?;
        Ok(())
    }
}

/// What one turn showed.
#[derive(Debug, Clone, Copy)]
struct Turn {
    rate: f64,
    own_us: f64,
    server_us: f64,
    round_ms: f64,
}

/// Lets the callers work for a while, and measures in the middle of it.
async fn window(place: &Place<'_>, callers: &[Caller]) -> Result<Turn> {
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut running = JoinSet::new();
    for caller in callers {
        let (caller, stop, done) = (caller.clone(), Arc::clone(&stop), Arc::clone(&done));
        running.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                caller.round().await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    let measured = async {
        tokio::time::sleep(WARM_UP).await;
        let (begun, before, cpu) = (Instant::now(), done.load(Ordering::Relaxed), place.cpu_us()?);
        tokio::time::sleep(WINDOW).await;
        let seconds = begun.elapsed().as_secs_f64();
        let tasks = (done.load(Ordering::Relaxed) - before) as f64;
        let (own, server) = place.cpu_us()?;
        anyhow::Ok(Turn {
            rate: tasks / seconds,
            own_us: (own - cpu.0) / tasks,
            server_us: (server - cpu.1) / tasks,
            round_ms: seconds * 1e3 * callers.len() as f64 / tasks,
        })
    };
    let turn = measured.await;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    turn
}
