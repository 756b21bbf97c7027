//! A gateway with everything under it, and a runner that does what the test says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use remuda_core::transition::Ending;
use remuda_core::{
    Capabilities, Claim, Failure, FailureClass, Fence, Health, OutputFile, OwnerId, Phase, Scope, Sha256,
    TaskResult, Tenant, WorkerId, WorkerReport, WorkerSpec,
};
use remuda_files::{FileKey, Files, Location};
use remuda_frames::FrameHub;
use remuda_runner::ask::Addresses;
use remuda_server::keys_socket::{KeyReply, KeyRequest, perform};
use remuda_server::{Server, ServerOptions};
use remuda_store::{
    Acquired, BeatRequest, ClaimRequest, Keyring, LeaseBeat, Options, SqliteStore, Store, WorkerBeat,
};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Generous, because CI machines are slow, and a hang is for ever.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

/// A graph that any worker runs.
pub(crate) const GRAPH: &str = r#"{"1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 255}},
 "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "blue"}}}"#;

/// What everything stands on.
pub(crate) struct Ground {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) files: Files,
    pub(crate) owner: OwnerId,
    /// The ComfyUIs that its gateways were told to drive.
    pub(crate) addresses: Addresses,
    pub(crate) dir: TempDir,
}

impl Ground {
    pub(crate) async fn new() -> Arc<Self> {
        Self::with(|_| {}).await
    }

    /// … with other options of the store.
    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Arc<Self> {
        let dir = TempDir::new().unwrap();
        let owner = OwnerId(Uuid::new_v4());
        let mut options = Options::new(owner);
        options.secrets = Keyring::parse(&Keyring::generate()).unwrap();
        change(&mut options);
        let store = SqliteStore::open(&dir.path().join("remuda.db"), options).await.unwrap();
        Self::on(Arc::new(store), owner, dir)
    }

    /// … on a store of its own.
    pub(crate) fn on(store: Arc<dyn Store>, owner: OwnerId, dir: TempDir) -> Arc<Self> {
        let files = Files::open(&Location::directory(dir.path().join("files"))).unwrap();
        Arc::new(Self { store, files, owner, addresses: Addresses::default(), dir })
    }

    pub(crate) async fn key(&self, tenant: &str, scopes: &[Scope]) -> String {
        let request = KeyRequest::Make {
            name: "test".to_owned(),
            tenant: Tenant::new(tenant).unwrap(),
            scopes: scopes.iter().copied().collect(),
        };
        match perform(&*self.store, request).await.unwrap() {
            KeyReply::Made { key, .. } => key,
            other => panic!("{other:?}"),
        }
    }
}

/// A gateway that answers.
pub(crate) struct Gateway {
    pub(crate) ground: Arc<Ground>,
    pub(crate) url: String,
    pub(crate) hub: FrameHub,
    pub(crate) stop: CancellationToken,
    pub(crate) running: JoinHandle<()>,
    pub(crate) http: reqwest::Client,
}

impl Gateway {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::on(Ground::new().await, change).await
    }

    pub(crate) async fn on(ground: Arc<Ground>, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let hub = FrameHub::default();
        let mut options = ServerOptions::new(ground.store.clone(), ground.files.clone(), hub.clone());
        options.advertise = Some(url.parse().unwrap());
        options.owner = Some(ground.owner);
        options.addresses = ground.addresses.clone();
        // Tests show many wrong keys, and are not to be slowed.
        options.limits.login_delay = Duration::ZERO;
        change(&mut options);
        let stop = CancellationToken::new();
        let running = tokio::spawn(Server::new(options).run(listener, stop.clone()));
        Self { ground, url, hub, stop, running, http: reqwest::Client::new() }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.ground.store
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).timeout(BOUND)
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    pub(crate) fn post(&self, path: &str) -> RequestBuilder {
        self.request(Method::POST, path)
    }

    pub(crate) fn delete(&self, path: &str) -> RequestBuilder {
        self.request(Method::DELETE, path)
    }

    /// Submits the usual graph; the new task's id.
    pub(crate) async fn submit(&self) -> String {
        self.submit_with("").await
    }

    /// … with further fields, as `"priority": 9,`.
    pub(crate) async fn submit_with(&self, fields: &str) -> String {
        let body = format!("{{{fields} \"payload\": {GRAPH}}}");
        let answer = json(self.post("/api/v1/tasks").json_text(&body).send().await.unwrap(), 201).await;
        answer["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn task(&self, id: &str) -> Value {
        json(self.get(&format!("/api/v1/tasks/{id}")).send().await.unwrap(), 200).await
    }

    pub(crate) async fn worker(&self) -> Worker {
        Worker::join(&self.ground, "gpu-1", None).await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The body of an answer that must have this status.
pub(crate) async fn json(answer: Response, status: u16) -> Value {
    let found = answer.status();
    let text = answer.text().await.unwrap();
    assert_eq!(found, StatusCode::from_u16(status).unwrap(), "{text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) trait JsonText {
    /// Exactly these bytes, as JSON.
    fn json_text(self, text: &str) -> Self;
}

impl JsonText for RequestBuilder {
    fn json_text(self, text: &str) -> Self {
        self.header("content-type", "application/json").body(text.to_owned())
    }
}

/// A worker whose runner is the test.
pub(crate) struct Worker {
    ground: Arc<Ground>,
    pub(crate) id: WorkerId,
    fence: Fence,
    pub(crate) gateway: Option<String>,
}

impl Worker {
    pub(crate) async fn join(ground: &Arc<Ground>, name: &str, object_info: Option<&str>) -> Self {
        Self::join_at(ground, name, "http://127.0.0.1:8188", object_info).await
    }

    /// … whose ComfyUI is said to be there.
    pub(crate) async fn join_at(
        ground: &Arc<Ground>,
        name: &str,
        endpoint: &str,
        object_info: Option<&str>,
    ) -> Self {
        let id = WorkerId::new(name).unwrap();
        let spec = WorkerSpec {
            id: id.clone(),
            endpoint: endpoint.to_owned(),
            name: Some(format!("pod-{name}")),
            labels: BTreeSet::from(["a100".to_owned()]),
        };
        let Acquired::Yes(worker) = ground.store.acquire_worker(spec, ground.owner).await.unwrap() else {
            panic!("the worker is somebody else's");
        };
        ground.addresses.add(id.clone(), endpoint);
        let this = Self { ground: ground.clone(), id, fence: worker.fence, gateway: None };
        let mut report = WorkerReport { health: Health::Healthy, ..WorkerReport::default() };
        if let Some(json) = object_info {
            let hash = Sha256::of(json.as_bytes());
            ground.store.save_object_info(hash, json).await.unwrap();
            report.object_info = Some(hash);
        }
        this.report(report).await;
        this
    }

    pub(crate) async fn report(&self, report: WorkerReport) {
        let workers = vec![WorkerBeat { id: self.id.clone(), fence: self.fence, report }];
        let beat =
            BeatRequest { owner: self.ground.owner, leases: Vec::new(), workers, wait: Duration::ZERO };
        let reply = self.ground.store.beat(beat).await.unwrap();
        assert!(reply.lost_workers.is_empty());
    }

    /// Lets go of it.
    pub(crate) async fn leave(&self) {
        self.ground.store.release_worker(self.ground.owner, &self.id, self.fence).await.unwrap();
    }

    /// The next task.
    pub(crate) async fn claim(&self) -> Claim {
        self.claim_within(BOUND).await.expect("there is a task to claim")
    }

    pub(crate) async fn claim_within(&self, wait: Duration) -> Option<Claim> {
        let request = ClaimRequest {
            owner: self.ground.owner,
            worker: self.id.clone(),
            worker_fence: self.fence,
            capabilities: Arc::new(Capabilities::default()),
            loaded: Vec::new(),
            ahead: false,
            gateway: self.gateway.clone(),
            wait,
        };
        self.ground.store.claim(request).await.unwrap()
    }

    pub(crate) async fn render(&self, claim: &Claim, progress: f64) {
        let lease = LeaseBeat { lease: claim.lease.reference(), phase: Phase::Rendering, progress };
        let beat = BeatRequest {
            owner: self.ground.owner,
            leases: vec![lease],
            workers: Vec::new(),
            wait: Duration::ZERO,
        };
        self.ground.store.beat(beat).await.unwrap();
    }

    /// Stores these bytes as the task's only output and ends it well.
    pub(crate) async fn complete(&self, claim: &Claim, bytes: &'static [u8]) -> OutputFile {
        let attempt = u32::try_from(claim.lease.attempt).unwrap();
        let fence = u64::try_from(claim.lease.fence.0).unwrap();
        let key = FileKey::output(claim.task.id.0, attempt, fence, 0, "blue_00001_.png");
        let stream = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(bytes))]);
        let stored = self.ground.files.put(&key, stream, None).await.unwrap();
        let file = OutputFile {
            subfolder: String::new(),
            n: 0,
            key: key.to_string(),
            filename: "blue_00001_.png".to_owned(),
            node_id: "2".to_owned(),
            output: "images".to_owned(),
            file_type: "output".to_owned(),
            mime: "image/png".to_owned(),
            size: i64::try_from(stored.size).unwrap(),
            sha256: Sha256(stored.sha256.0),
        };
        let result =
            TaskResult { files: vec![file.clone()], execution_ms: Some(12), ..TaskResult::default() };
        self.end(claim, Ending::Completed { result, gpu_ms: Some(12) }).await;
        file
    }

    /// Ends it well, with a file in its record that is not in the file store.
    #[allow(dead_code, reason = "for the tests of the synchronous handler")]
    pub(crate) async fn complete_without_file(&self, claim: &Claim) {
        let result = TaskResult { files: vec![gone(claim)], ..TaskResult::default() };
        self.end(claim, Ending::Completed { result, gpu_ms: None }).await;
    }

    /// Ends it well, with nothing left.
    #[allow(dead_code, reason = "not every subject needs it")]
    pub(crate) async fn complete_without_files(&self, claim: &Claim) {
        self.end(claim, Ending::Completed { result: TaskResult::default(), gpu_ms: None }).await;
    }

    pub(crate) async fn fail(&self, claim: &Claim, class: FailureClass, message: &str) {
        self.end(claim, Ending::Failed { failure: Failure::new(class, message), partial: None }).await;
    }

    pub(crate) async fn end(&self, claim: &Claim, ending: Ending) {
        self.ground.store.end(claim.lease.owner, claim.lease.reference(), ending).await.unwrap();
    }
}

/// A file of a result that is not in the file store.
#[allow(dead_code, reason = "for the tests of the synchronous handler")]
pub(crate) fn gone(claim: &Claim) -> OutputFile {
    OutputFile {
        subfolder: String::new(),
        n: 0,
        key: FileKey::output(claim.task.id.0, 1, 1, 0, "gone.png").to_string(),
        filename: "gone.png".to_owned(),
        node_id: "1".to_owned(),
        output: "images".to_owned(),
        file_type: "output".to_owned(),
        mime: "image/png".to_owned(),
        size: 3,
        sha256: Sha256::of(b"abc"),
    }
}
