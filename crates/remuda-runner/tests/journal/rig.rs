//! What the tests share: a queue made of channels, simulators, and herds with short pauses and long patience.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use comfyui::{Client, SessionOptions};
use comfyui_sim::{SimConfig, Simulator};
use remuda_core::transition::Ending;
use remuda_core::{OwnerId, TaskResult, WorkerId, WorkerSpec};
use remuda_files::Files;
use remuda_frames::Frame;
use remuda_pool::HarmBook;
use remuda_runner::source::foreign::{
    Delivery, DeliveryEnding, ForeignOptions, ForeignQueue, ForeignSource, Reported, Withdrawn,
};
use remuda_runner::source::{Result, SourceError};
use remuda_runner::{Herd, HerdOptions, Timing, WorkerConfig, host_id, worker_id_for};
use remuda_testbed::wait;
use serde_json::{Value, json};
use tokio::sync::Notify;
use uuid::Uuid;

pub(crate) use crate::held::{Held, hold};

/// Generous, because machines can be slow and busy, and a hang is for ever.
pub(crate) const BOUND: Duration = Duration::from_secs(300);

/// Never reached by what goes well, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// Somebody with work.
#[derive(Debug, Default)]
pub(crate) struct TestQueue {
    name: &'static str,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    deliveries: VecDeque<Delivery>,
    asking: usize,
    most_asking: usize,
    reports: Vec<(Delivery, DeliveryEnding)>,
    begun: Vec<(String, WorkerId)>,
    frames: usize,
    away: bool,
    /// How many questions are still left unanswered.
    deaf: usize,
    /// Delivered again as soon as its failure is reported, before that is answered.
    retry: Option<Delivery>,
    over: HashMap<String, VecDeque<Withdrawn>>,
}

impl TestQueue {
    pub(crate) fn new() -> Arc<Self> {
        Self::named("the queue")
    }

    pub(crate) fn named(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, ..Self::default() })
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let done = act(&mut self.state.lock().unwrap());
        self.changed.notify_waiters();
        done
    }

    pub(crate) fn give(&self, delivery: &Delivery) {
        self.with(|state| state.deliveries.push_back(delivery.clone()));
    }

    pub(crate) fn retry_as(&self, delivery: &Delivery) {
        self.with(|state| state.retry = Some(delivery.clone()));
    }

    pub(crate) fn deaf(&self, times: usize) {
        self.with(|state| state.deaf = times);
    }

    pub(crate) fn away(&self, away: bool) {
        self.with(|state| state.away = away);
    }

    /// What a watch over this work returns next.
    pub(crate) fn say(&self, key: &str, over: Withdrawn) {
        self.with(|state| state.over.entry(key.to_owned()).or_default().push_back(over));
    }

    /// Whether everything that was to be said of this work was.
    pub(crate) fn has_said(&self, key: &str) -> bool {
        self.with(|state| state.over.get(key).is_none_or(VecDeque::is_empty))
    }

    pub(crate) fn reports(&self) -> Vec<(Delivery, DeliveryEnding)> {
        self.with(|state| state.reports.clone())
    }

    pub(crate) fn begun(&self) -> Vec<(String, WorkerId)> {
        self.with(|state| state.begun.clone())
    }

    pub(crate) fn frames(&self) -> usize {
        self.with(|state| state.frames)
    }

    pub(crate) fn asking(&self) -> usize {
        self.with(|state| state.asking)
    }

    pub(crate) fn most_asking(&self) -> usize {
        self.with(|state| state.most_asking)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.with(|state| state.deliveries.len())
    }

    /// Waits for this many reports.
    pub(crate) async fn heard(&self, reports: usize) -> Vec<(Delivery, DeliveryEnding)> {
        let heard = async {
            loop {
                let changed = self.changed.notified();
                let heard = self.reports_quietly();
                if heard.len() >= reports {
                    return heard;
                }
                changed.await;
            }
        };
        tokio::time::timeout(BOUND, heard).await.expect("reports in time")
    }

    fn reports_quietly(&self) -> Vec<(Delivery, DeliveryEnding)> {
        self.state.lock().unwrap().reports.clone()
    }
}

/// A question that is dropped is not one any more.
struct Asking<'a>(&'a TestQueue);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.with(|state| state.asking -= 1);
    }
}

#[async_trait]
impl ForeignQueue for TestQueue {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    async fn next(&self) -> Result<Delivery> {
        self.with(|state| {
            state.asking += 1;
            state.most_asking = state.most_asking.max(state.asking);
        });
        let _asking = Asking(self);
        let heard = self.with(|state| match state.deaf.checked_sub(1) {
            Some(left) => {
                state.deaf = left;
                false
            }
            None => true,
        });
        if !heard {
            return Err(SourceError::Unavailable("the queue does not listen".to_owned()));
        }
        loop {
            let changed = self.changed.notified();
            let delivery = self.state.lock().unwrap().deliveries.pop_front();
            if let Some(delivery) = delivery {
                self.changed.notify_waiters();
                return Ok(delivery);
            }
            changed.await;
        }
    }

    async fn report(&self, delivery: &Delivery, ending: &DeliveryEnding) -> Result<Reported> {
        let retry = self.with(|state| {
            if state.away {
                return Err(SourceError::Unavailable("the queue is away".to_owned()));
            }
            state.reports.push((delivery.clone(), ending.clone()));
            Ok(state.retry.take())
        })?;
        if let Some(delivery) = retry {
            self.give(&delivery);
            loop {
                let changed = self.changed.notified();
                if self.state.lock().unwrap().deliveries.is_empty() {
                    break;
                }
                changed.await;
            }
        }
        Ok(Reported::Heard)
    }

    async fn watch(&self, delivery: &Delivery) -> Withdrawn {
        loop {
            let changed = self.changed.notified();
            let said = self.state.lock().unwrap().over.get_mut(&delivery.key).and_then(VecDeque::pop_front);
            if let Some(over) = said {
                return over;
            }
            changed.await;
        }
    }

    fn frame(&self, _: &Delivery, _: &Frame) {
        self.with(|state| state.frames += 1);
    }

    fn begun(&self, delivery: &Delivery, worker: &WorkerId, _: bool) {
        self.with(|state| state.begun.push((delivery.key.clone(), worker.clone())));
    }
}

/// One process: a journal and a herd.
pub(crate) struct Process {
    pub(crate) source: Arc<ForeignSource>,
    pub(crate) herd: Herd,
}

/// A folder that outlives processes.
pub(crate) struct Rig {
    pub(crate) queue: Arc<TestQueue>,
    pub(crate) owner: OwnerId,
    pub(crate) sink: Option<Files>,
    pub(crate) slots: usize,
    /// What its processes know of harmful tasks.
    pub(crate) harm: HarmBook,
    dir: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        // RUST_LOG=remuda_runner=debug shows what happens.
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let dir = tempfile::tempdir().expect("a folder");
        Self {
            queue: TestQueue::new(),
            owner: OwnerId(Uuid::new_v4()),
            sink: None,
            slots: 1,
            harm: HarmBook::default(),
            dir,
        }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    /// The files of the journal.
    pub(crate) fn journal(&self) -> Vec<PathBuf> {
        let Ok(files) = std::fs::read_dir(self.folder().join("journal")) else { return Vec::new() };
        files.map(|file| file.unwrap().path()).collect()
    }

    pub(crate) async fn open(&self, sims: &[&Simulator]) -> Result<ForeignSource> {
        let workers = sims.iter().map(|sim| (worker_id(sim), worker(sim).client)).collect();
        let options = ForeignOptions {
            folder: self.folder(),
            owner: self.owner,
            slots: self.slots,
            workers,
            sink: self.sink.clone(),
        };
        let queue: Arc<TestQueue> = Arc::clone(&self.queue);
        ForeignSource::open(queue, options).await
    }

    /// Starts a process; one that was killed just before may hold the lock for another moment.
    pub(crate) async fn start(&self, sims: &[&Simulator]) -> Process {
        let opened = wait::until("the journal to open", BOUND, async || self.open(sims).await);
        let source = Arc::new(opened.await.expect("in time"));
        let shared: Arc<ForeignSource> = Arc::clone(&source);
        let herd = Herd::start(shared, HerdOptions { harm: self.harm.clone(), ..options(self.owner) });
        for sim in sims {
            assert!(herd.add(worker(sim)));
        }
        Process { source, herd }
    }
}

impl Process {
    /// As `kill -9` does.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Ends it well; how many reports were not heard.
    pub(crate) async fn stop(self) -> usize {
        self.herd.stop(BOUND).await;
        self.source.close(BOUND).await
    }
}

fn options(owner: OwnerId) -> HerdOptions {
    let mut options = HerdOptions::new(owner);
    options.timing = Timing {
        beat: Duration::from_millis(500),
        beat_retry: Duration::from_millis(100),
        stale: Duration::from_secs(20),
        claim: Duration::from_secs(2),
        source: PATIENCE,
        transfer: PATIENCE,
        retry: Duration::from_millis(200),
        probe: Duration::from_millis(300),
        sweep: Duration::from_millis(500),
        second_look: Duration::from_millis(100),
        unreachable: PATIENCE,
        stopping: PATIENCE,
        stop_patience: PATIENCE,
        delivery_patience: PATIENCE,
    };
    options
}

pub(crate) fn worker(sim: &Simulator) -> WorkerConfig {
    let url = sim.url();
    let spec = WorkerSpec {
        id: worker_id(sim),
        endpoint: url.clone(),
        name: None,
        labels: std::collections::BTreeSet::new(),
    };
    let client = Client::builder(&url).timeout(PATIENCE).build().expect("an address");
    let session = SessionOptions {
        survey: Duration::from_millis(500),
        survey_blind: Duration::from_millis(100),
        look_timeout: PATIENCE,
        worker_dead_after: PATIENCE,
        greeting: PATIENCE,
        silence: PATIENCE,
        longest_backoff: Duration::from_millis(200),
        ..SessionOptions::default()
    };
    WorkerConfig { session, ..WorkerConfig::new(spec, client) }
}

pub(crate) fn worker_id(sim: &Simulator) -> WorkerId {
    worker_id_for(&sim.url(), &host_id()).expect("a name")
}

pub(crate) async fn sim() -> Simulator {
    Simulator::start(SimConfig::default()).await.expect("a simulator")
}

/// Waits until ComfyUI works on a prompt.
pub(crate) async fn rendering(sim: &Simulator, prompts: u64) {
    until("a render to begin", async || sim.stats().executions_total >= prompts).await;
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    wait::until(what, BOUND, async || look().await.then_some(())).await.expect("in time");
}

fn number() -> u64 {
    Uuid::new_v4().as_u64_pair().0
}

/// Three nodes and a picture; every call another.
pub(crate) fn picture() -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 48, "batch_size": 1, "color": number() % 0x100_0000}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "pictures/one"}},
    })
}

/// Longer than any test.
pub(crate) fn endless() -> Value {
    long(1800.0)
}

/// Works for at least this long, can be stopped on the way, and saves.
pub(crate) fn long(seconds: f64) -> Value {
    json!({
        "1": {"class_type": "RigProgress", "inputs": {"steps": (seconds * 50.0) as u64, "step_ms": 20, "preview": "JPEG", "preview_size": 32, "seed": number()}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "long"}},
    })
}

/// A task with this graph.
pub(crate) fn delivery(key: &str, graph: &Value) -> Delivery {
    let prompt_id = Uuid::new_v4();
    Delivery {
        key: key.to_owned(),
        attempt: 0,
        prompt_id,
        second_prompt_id: second_id(prompt_id, 0),
        workflow: serde_json::value::to_raw_value(graph).expect("JSON"),
        again: false,
        timeout_s: None,
        files: Vec::new(),
        folder: None,
        cookie: json!({"key": key, "attempt": 0}),
        sent_as: None,
        refused: None,
        earlier: Vec::new(),
    }
}

fn second_id(prompt_id: Uuid, attempt: i32) -> Uuid {
    Uuid::new_v5(&prompt_id, attempt.to_string().as_bytes())
}

/// The same task, delivered again.
pub(crate) fn again(delivery: &Delivery, attempt: i32) -> Delivery {
    Delivery {
        attempt,
        again: true,
        second_prompt_id: second_id(delivery.prompt_id, attempt),
        files: Vec::new(),
        folder: None,
        cookie: json!({"key": delivery.key, "attempt": attempt}),
        ..delivery.clone()
    }
}

/// The result of a good end.
pub(crate) fn result(ending: &DeliveryEnding) -> &TaskResult {
    match ending {
        DeliveryEnding::Ended(Ending::Completed { result, .. }) => result,
        other => panic!("{other:?}"),
    }
}
