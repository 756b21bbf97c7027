//! How many tasks per second go through a store: submit, claim, end, by many callers at once.
//!
//! ```console
//! $ cargo run --release -p remuda-store --example throughput -- --waiting 1000000
//! $ cargo run --release -p remuda-store --example throughput -- --store postgres://postgres@127.0.0.1/empty
//! ```
//!
//! Without `--store` (`sqlite:PATH` or `postgres://…`) a SQLite file in a temporary folder is used, below `--folder` if
//! that is given.

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remuda_core::transition::Ending;
use remuda_core::{NewTask, OwnerId, TaskResult, WorkerId, WorkerSpec};
use remuda_store::{Acquired, ClaimRequest, Options, PostgresStore, SqliteStore, Store};
use serde_json::value::RawValue;
use uuid::Uuid;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Debug, Clone)]
struct Settings {
    callers: usize,
    seconds: u64,
    waiting: usize,
    bytes: usize,
    folder: Option<PathBuf>,
    store: Option<String>,
}

fn settings() -> Result<Settings> {
    let mut settings =
        Settings { callers: 64, seconds: 10, waiting: 0, bytes: 2048, folder: None, store: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or("every option needs a value")?;
        match word.as_str() {
            "--callers" => settings.callers = value.parse()?,
            "--seconds" => settings.seconds = value.parse()?,
            "--waiting" => settings.waiting = value.parse()?,
            "--bytes" => settings.bytes = value.parse()?,
            "--folder" => settings.folder = Some(value.into()),
            "--store" => settings.store = Some(value),
            _ => return Err(format!("unknown option {word}").into()),
        }
    }
    Ok(settings)
}

fn workflow(bytes: usize) -> Result<Box<RawValue>> {
    let text = "x".repeat(bytes.saturating_sub(60));
    Ok(RawValue::from_string(format!(
        r#"{{"6":{{"class_type":"CLIPTextEncode","inputs":{{"text":"{text}"}}}}}}"#
    ))?)
}

#[tokio::main]
async fn main() -> Result<()> {
    let settings = settings()?;
    let folder = match &settings.folder {
        Some(parent) => tempfile::tempdir_in(parent)?,
        None => tempfile::tempdir()?,
    };
    let owner = OwnerId(Uuid::new_v4());
    let options = Options::new(owner);
    let file = folder.path().join("remuda.db");
    let store: Arc<dyn Store> = match settings.store.as_deref().map(|url| (url, url.strip_prefix("sqlite:")))
    {
        None => Arc::new(SqliteStore::open(&file, options).await?),
        Some((_, Some(path))) => Arc::new(SqliteStore::open(path.as_ref(), options).await?),
        Some((url, None)) => Arc::new(PostgresStore::connect(url, options).await?),
    };
    let workflow = workflow(settings.bytes)?;

    let begun = Instant::now();
    fill(&store, settings.waiting, &workflow).await?;
    if settings.waiting > 0 {
        let rate = settings.waiting as f64 / begun.elapsed().as_secs_f64();
        println!("{} submitted, {rate:.0}/s", settings.waiting);
    }

    let done = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + Duration::from_secs(settings.seconds);
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..settings.callers {
        let (store, workflow, done) = (Arc::clone(&store), workflow.clone(), Arc::clone(&done));
        callers.spawn(async move { lives(&*store, owner, n, &workflow, until, &done).await });
    }
    let mut times = Vec::new();
    while let Some(one) = callers.join_next().await {
        times.extend(one??);
    }
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let n = done.load(Ordering::Relaxed) as f64;
    times.sort_unstable();
    let at = |q: f64| times.get((times.len() as f64 * q) as usize).copied().unwrap_or_default();
    println!(
        "{} callers, {} waiting: {:.0} lives/s, {:.0} us CPU each, one life p50 {:.1?} p99 {:.1?}",
        settings.callers,
        settings.waiting,
        n / wall,
        cpu / n * 1e6,
        at(0.5),
        at(0.99),
    );
    store.close().await;
    Ok(())
}

async fn fill(store: &Arc<dyn Store>, waiting: usize, workflow: &RawValue) -> Result<()> {
    let mut fillers = tokio::task::JoinSet::new();
    for n in 0..256 {
        let (store, workflow) = (Arc::clone(store), workflow.to_owned());
        fillers.spawn(async move {
            for _ in (n..waiting).step_by(256) {
                store.submit(NewTask::new(workflow.clone())).await?;
            }
            Ok::<_, remuda_store::Error>(())
        });
    }
    while let Some(one) = fillers.join_next().await {
        one??;
    }
    Ok(())
}

async fn lives(
    store: &dyn Store,
    owner: OwnerId,
    n: usize,
    workflow: &RawValue,
    until: Instant,
    done: &AtomicU64,
) -> Result<Vec<Duration>> {
    let id = WorkerId::new(format!("w{n}"))?;
    let spec = WorkerSpec { id, endpoint: String::new(), name: None, labels: Default::default() };
    let Acquired::Yes(worker) = store.acquire_worker(spec.clone(), owner).await? else {
        return Err("the worker is somebody else's".into());
    };
    let mut times = Vec::new();
    while Instant::now() < until {
        let begun = Instant::now();
        store.submit(NewTask::new(workflow.to_owned())).await?;
        let request = ClaimRequest {
            owner,
            worker: spec.id.clone(),
            worker_fence: worker.fence,
            capabilities: Arc::default(),
            loaded: Vec::new(),
            ahead: false,
            gateway: None,
            wait: Duration::from_secs(5),
        };
        let claim = store.claim(request).await?.ok_or("nothing to claim")?;
        let ending = Ending::Completed { result: TaskResult::default(), gpu_ms: Some(1000) };
        store.end(claim.lease.owner, claim.lease.reference(), ending).await?;
        times.push(begun.elapsed());
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(times)
}

/// What this process has used so far.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
