//! What the tests share: a store, files, simulators, and herds with short pauses and long patience.

use std::sync::Arc;
use std::time::Duration;

use comfyui::{Client, SessionOptions};
use comfyui_sim::{SimConfig, Simulator};
use remuda_core::{NewTask, OwnerId, Status, Task, TaskId, WorkerId, WorkerSpec};
use remuda_files::{Files, Location};
use remuda_frames::FrameHub;
use remuda_preflight::Preflight;
use remuda_runner::source::{QueueSource, Source};
use remuda_runner::{Herd, HerdOptions, QuarantineRules, Timing, WorkerConfig, host_id, worker_id_for};
use remuda_store::{Options, PostgresStore, SqliteStore, Store};
use remuda_testbed::wait;
use serde_json::{Value, json};

pub(crate) use crate::held::hold;

/// Generous, because machines can be slow and busy, and a hang is for ever.
pub(crate) const BOUND: Duration = Duration::from_secs(300);

/// Never reached by what goes well, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// One installation.
pub(crate) struct Rig {
    pub(crate) store: Arc<dyn Store>,
    stores: Vec<(OwnerId, Arc<dyn Store>)>,
    pub(crate) files: Files,
    pub(crate) hub: FrameHub,
    /// The process that has the store open.
    pub(crate) owner: OwnerId,
    _dir: tempfile::TempDir,
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let dir = prepare();
        let owner = OwnerId(uuid::Uuid::new_v4());
        let mut options = store_options(owner);
        change(&mut options);
        let store = SqliteStore::open(&dir.path().join("remuda.db"), options).await.expect("a store");
        Self::around(dir, vec![(owner, Arc::new(store))])
    }

    /// One installation on PostgreSQL, with two processes.
    pub(crate) async fn on_postgres(url: &str, change: impl Fn(&mut Options)) -> Self {
        let mut stores: Vec<(OwnerId, Arc<dyn Store>)> = Vec::new();
        for _ in 0..2 {
            let owner = OwnerId(uuid::Uuid::new_v4());
            let mut options = store_options(owner);
            change(&mut options);
            stores.push((owner, Arc::new(PostgresStore::connect(url, options).await.expect("a store"))));
        }
        Self::around(prepare(), stores)
    }

    fn around(dir: tempfile::TempDir, stores: Vec<(OwnerId, Arc<dyn Store>)>) -> Self {
        let files = Files::open(&Location::directory(dir.path().join("files"))).expect("files");
        let (owner, store) = stores[0].clone();
        Self { store, stores, files, hub: FrameHub::default(), owner, _dir: dir }
    }

    /// The processes: one with SQLite, two with PostgreSQL.
    pub(crate) fn owners(&self) -> Vec<OwnerId> {
        self.stores.iter().map(|(owner, _)| *owner).collect()
    }

    pub(crate) fn source(&self, owner: OwnerId) -> Arc<dyn Source> {
        let own = self.stores.iter().find(|(known, _)| *known == owner);
        let store = own.map_or(&self.store, |(_, store)| store);
        let preflight = Arc::new(Preflight::new(Arc::clone(store)));
        Arc::new(QueueSource::new(Arc::clone(store), preflight, self.files.clone(), self.hub.clone(), owner))
    }

    /// A herd of the process that has the store open.
    pub(crate) fn herd(&self, sims: &[&Simulator]) -> Herd {
        self.herd_of(self.owner, sims)
    }

    pub(crate) fn herd_of(&self, owner: OwnerId, sims: &[&Simulator]) -> Herd {
        self.herd_with(owner, sims, |_, _| {})
    }

    /// One with other patience: that of the herd, and that of its workers.
    pub(crate) fn herd_with(
        &self,
        owner: OwnerId,
        sims: &[&Simulator],
        change: impl Fn(&mut HerdOptions, &mut WorkerConfig),
    ) -> Herd {
        let mut options = options(owner);
        let mut workers: Vec<_> = sims.iter().map(|sim| worker(sim)).collect();
        workers.iter_mut().for_each(|worker| change(&mut options, worker));
        let herd = Herd::start(self.source(owner), options);
        for worker in workers {
            assert!(herd.add(worker));
        }
        herd
    }

    pub(crate) async fn submit(&self, graph: &Value) -> TaskId {
        self.submit_with(graph, |_| {}).await
    }

    pub(crate) async fn submit_with(&self, graph: &Value, change: impl FnOnce(&mut NewTask)) -> TaskId {
        let mut new = NewTask::new(serde_json::value::to_raw_value(graph).expect("JSON"));
        change(&mut new);
        let id = new.id;
        self.store.submit(new).await.expect("taken in");
        id
    }

    pub(crate) async fn task(&self, id: TaskId) -> Task {
        self.store.task(id).await.expect("the store").expect("the task")
    }

    /// Waits for the end of a task; meanwhile the store is kept tidy.
    pub(crate) async fn end_of(&self, id: TaskId) -> Task {
        self.until(id, "to end", |task| task.status.is_terminal()).await
    }

    pub(crate) async fn completed(&self, id: TaskId) -> Task {
        let task = self.end_of(id).await;
        assert_eq!(task.status, Status::Completed, "{task:?}");
        task
    }

    pub(crate) async fn until(&self, id: TaskId, what: &str, is: impl Fn(&Task) -> bool) -> Task {
        let waited = wait::until(format!("task {id} {what}"), BOUND, async || {
            // A store that is away for a while is part of some tests.
            let _ = self.store.tidy().await;
            match self.store.task(id).await {
                Ok(Some(task)) if is(&task) => Ok(task),
                other => Err(format!("{other:?}")),
            }
        });
        waited.await.expect("in time")
    }

    /// Waits until ComfyUI works on a task.
    pub(crate) async fn rendering(&self, sim: &Simulator, tasks: u64) {
        let waited = wait::until("a render to begin", BOUND, async || {
            let begun = sim.stats().executions_total;
            if begun >= tasks { Ok(()) } else { Err(format!("{begun} begun")) }
        });
        waited.await.expect("in time");
    }
}

fn prepare() -> tempfile::TempDir {
    // RUST_LOG=remuda_runner=debug shows what happens.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    tempfile::tempdir().expect("a folder")
}

fn store_options(owner: OwnerId) -> Options {
    let mut options = Options::new(owner);
    options.secrets = remuda_store::Keyring::parse(&"11".repeat(32)).expect("a key");
    options.settle = Duration::ZERO;
    options.policy.backoff = Duration::from_millis(50);
    options.policy.avoid = Duration::from_millis(200);
    options
}

/// Short pauses and long patience: a test about something that is given up asks for less of it.
pub(crate) fn options(owner: OwnerId) -> HerdOptions {
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
    options.quarantine = QuarantineRules { rest: Duration::from_secs(10), ..QuarantineRules::default() };
    options
}

/// Looks often, and believes only after a long time that something is dead.
pub(crate) fn brisk() -> SessionOptions {
    SessionOptions {
        survey: Duration::from_millis(500),
        survey_blind: Duration::from_millis(100),
        look_timeout: PATIENCE,
        worker_dead_after: PATIENCE,
        stalled_after: 2 * BOUND,
        unreachable_after: PATIENCE,
        greeting: PATIENCE,
        silence: PATIENCE,
        longest_backoff: Duration::from_millis(200),
        ..SessionOptions::default()
    }
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
    WorkerConfig { session: brisk(), ..WorkerConfig::new(spec, client) }
}

pub(crate) fn worker_id(sim: &Simulator) -> WorkerId {
    worker_id_for(&sim.url(), &host_id()).expect("a name")
}

pub(crate) async fn sim() -> Simulator {
    Simulator::start(SimConfig::default()).await.expect("a simulator")
}

fn number() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

/// Three nodes and a picture; every call another.
pub(crate) fn picture() -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 48, "batch_size": 1, "color": number() % 0x100_0000}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "pictures/one"}},
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

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    wait::until(what, BOUND, async || look().await.then_some(())).await.expect("in time");
}

/// Stands for a prompt that nobody may disturb.
pub(crate) async fn submit_directly(
    sim: &Simulator,
    graph: &Value,
    extra: Option<Value>,
) -> comfyui::PromptId {
    let workflow = comfyui::Workflow::parse(graph.to_string()).expect("a graph");
    let mut request = comfyui::PromptRequest::new(workflow);
    if let Some(extra) = extra {
        request = request.extra("remuda", extra);
    }
    Client::new(&sim.url()).expect("an address").submit(&request).await.expect("accepted").prompt_id
}
