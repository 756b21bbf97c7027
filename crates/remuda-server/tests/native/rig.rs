//! What the tests share: a gateway that drives simulated ComfyUIs.

#![allow(dead_code, reason = "not every subject needs all of it")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use comfyui::{Client, SessionOptions};
use comfyui_sim::{SimConfig, Simulator};
use remuda_core::{TaskId, WorkerSpec};
use remuda_runner::source::QueueSource;
use remuda_runner::{Herd, HerdOptions, Timing, WorkerConfig, host_id, worker_id_for};
use remuda_server::ServerOptions;
use remuda_testbed::wait;
use serde_json::{Value, json};

pub(crate) use crate::support::BOUND;
use crate::support::{self, Gateway, Ground, JsonText as _};

/// A ComfyUI that is away for this long has lost what it was given.
const UNREACHABLE: Duration = Duration::from_secs(5);

/// So seldom a ComfyUI is asked how things are going while its socket works. Seldom enough that every end is heard: one
/// that is found by asking comes before the last messages, and those are lost then.
const SURVEY: Duration = Duration::from_secs(20);

/// A gateway with a herd of simulators.
pub(crate) struct Ranch {
    pub(crate) gateway: Gateway,
    pub(crate) herd: Herd,
    pub(crate) sims: Vec<Simulator>,
    survey: Duration,
}

impl Ranch {
    /// With this many simulated ComfyUIs, all of them healthy.
    pub(crate) async fn start(sims: usize) -> Self {
        Self::start_with(sims, |_| {}).await
    }

    pub(crate) async fn start_with(count: usize, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let mut preflight = None;
        let gateway = Gateway::on(Ground::new().await, |options| {
            change(options);
            preflight = Some(options.preflight());
        });
        let gateway = gateway.await;
        let preflight = preflight.expect("it was made");
        let ground = &gateway.ground;
        let (store, files) = (ground.store.clone(), ground.files.clone());
        let source = QueueSource::new(store, preflight, files, gateway.hub.clone(), ground.owner);
        let mut options = HerdOptions::new(ground.owner);
        // Seconds instead of minutes.
        options.timing = Timing {
            beat: Duration::from_millis(500),
            beat_retry: Duration::from_millis(100),
            retry: Duration::from_millis(200),
            probe: Duration::from_millis(300),
            sweep: Duration::from_millis(500),
            second_look: Duration::from_millis(100),
            unreachable: UNREACHABLE,
            ..Timing::default()
        };
        options.gateway = Some(gateway.url.clone());
        let herd = Herd::start(Arc::new(source), options);
        let mut this = Self { gateway, herd, sims: Vec::new(), survey: SURVEY };
        for _ in 0..count {
            this.add(SimConfig::default()).await;
        }
        this
    }

    /// One more ComfyUI, which is asked often how things are going.
    pub(crate) async fn add_surveyed(&mut self) -> usize {
        self.survey = Duration::from_millis(500);
        self.add(SimConfig::default()).await
    }

    /// One more ComfyUI; returns when it may be given tasks.
    pub(crate) async fn add(&mut self, config: SimConfig) -> usize {
        let sim = Simulator::start(config).await.expect("a simulator");
        let id = worker_id_for(&sim.url(), &host_id()).expect("a name");
        let spec = WorkerSpec { id: id.clone(), endpoint: sim.url(), name: None, labels: BTreeSet::new() };
        let client = Client::new(&sim.url()).expect("an address");
        self.gateway.ground.addresses.add(id.clone(), sim.url());
        let session = SessionOptions {
            survey: self.survey,
            unreachable_after: UNREACHABLE,
            ..SessionOptions::default()
        };
        assert!(self.herd.add(WorkerConfig { session, ..WorkerConfig::new(spec, client) }));
        self.sims.push(sim);
        let store = self.gateway.store();
        let known = wait::until("a worker to tell what it can do", BOUND, async || {
            let workers = store.workers().await.expect("the store");
            workers
                .iter()
                .any(|worker| worker.spec.id == id && worker.report.object_info.is_some())
                .then_some(())
        });
        known.await.expect("in time");
        self.sims.len() - 1
    }

    /// Submits a graph as ComfyUI's clients do; the prompt id.
    pub(crate) async fn prompt(&self, graph: &Value) -> String {
        let answer = self.prompt_with(json!({"prompt": graph, "client_id": "tester"})).await;
        answer["prompt_id"].as_str().expect("an id").to_owned()
    }

    /// … with a whole body.
    pub(crate) async fn prompt_with(&self, body: Value) -> Value {
        let request = self.gateway.post("/prompt").json_text(&body.to_string());
        support::json(request.send().await.unwrap(), 200).await
    }

    /// The JSON that a path answers with 200.
    pub(crate) async fn get(&self, path: &str) -> Value {
        support::json(self.gateway.get(path).send().await.unwrap(), 200).await
    }

    /// Waits for the history entry of a prompt.
    pub(crate) async fn entry(&self, prompt_id: &str) -> Value {
        let waited = wait::until(format!("the history of {prompt_id}"), BOUND, async || {
            let history = self.get(&format!("/history/{prompt_id}")).await;
            history.get(prompt_id).cloned()
        });
        waited.await.expect("in time")
    }

    /// The task behind a prompt whose id is the task's own.
    pub(crate) async fn task(&self, prompt_id: &str) -> remuda_core::Task {
        let id: TaskId = prompt_id.parse().expect("a task's id");
        self.gateway.store().task(id).await.expect("the store").expect("the task")
    }

    pub(crate) async fn stop(self) {
        self.herd.stop(Duration::from_secs(5)).await;
        for sim in self.sims {
            sim.shutdown().await;
        }
    }
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

/// Works for at least this long, can be stopped on the way, and saves.
pub(crate) fn long(seconds: f64) -> Value {
    json!({
        "1": {"class_type": "RigProgress", "inputs": {"steps": (seconds * 50.0) as u64, "step_ms": 20, "preview": "JPEG", "preview_size": 32, "seed": number()}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "long"}},
    })
}
