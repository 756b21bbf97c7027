//! What the tests share: an installation whose servers come and go, and sidecars.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use remuda_core::transition::Ending;
use remuda_core::{
    ApiKey, Capabilities, Claim, Fence, KeyId, KeyRecord, LeaseRef, NewTask, OutputFile, OwnerId, Scope,
    Scopes, Task, TaskId, TaskResult, Tenant, Timestamp, WorkerId, WorkerSpec,
};
use remuda_files::{Files, Location};
use remuda_frames::FrameHub;
use remuda_runner::source::{ByteStream, Delivered, GatewaySource, NewFile, Source, SourceError};
use remuda_server::{Limits, Server, ServerOptions};
use remuda_store::{Acquired, AdoptRequest, ClaimRequest, Options, SqliteStore, Store};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;

/// Generous, because CI machines are slow, and a hang is for ever.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

/// A graph with a number that no float can hold.
pub(crate) const GRAPH: &str = r#"{"1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height":  8, "batch_size": 1, "color": 18446744073709551615}}}"#;

/// One installation with one server.
pub(crate) struct Ground {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) files: Files,
    pub(crate) hub: FrameHub,
    pub(crate) address: SocketAddr,
    pub(crate) key: ApiKey,
    /// The server's own.
    pub(crate) owner: OwnerId,
    /// Of the servers that are started from now on.
    pub(crate) limits: Limits,
    server: Option<(CancellationToken, JoinHandle<()>)>,
    dir: tempfile::TempDir,
}

impl Ground {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let owner = OwnerId(Uuid::new_v4());
        let options = Options::new(owner);
        let store = SqliteStore::open(&dir.path().join("remuda.db"), options).await.expect("a store");
        let files = Files::open(&Location::directory(dir.path().join("files"))).expect("files");
        // One that nobody takes while the server is away.
        let port = remuda_testbed::net::free_port().expect("a port");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let key = ApiKey::generate(&mut rand::rng());
        let mut ground = Self {
            store: Arc::new(store),
            files,
            hub: FrameHub::default(),
            address,
            key,
            owner,
            limits: Limits::default(),
            server: None,
            dir,
        };
        ground.allow(&ground.key, [Scope::Worker, Scope::Read, Scope::Submit].into()).await;
        ground.start().await;
        ground
    }

    pub(crate) async fn allow(&self, key: &ApiKey, scopes: Scopes) {
        let record = KeyRecord {
            id: KeyId(Uuid::new_v4()),
            name: "test".to_owned(),
            tenant: Tenant::default_tenant(),
            scopes,
            hash: key.hash(),
            created_at: Timestamp::now(),
            revoked_at: None,
        };
        self.store.add_key(record).await.expect("a key");
    }

    /// Starts the server, at the same address as before.
    pub(crate) async fn start(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("a port");
        self.address = listener.local_addr().expect("an address");
        self.server = Some(self.serve(listener, self.hub.clone()));
    }

    fn serve(&self, listener: TcpListener, hub: FrameHub) -> (CancellationToken, JoinHandle<()>) {
        let address = listener.local_addr().expect("an address");
        let options = ServerOptions {
            drain: Duration::from_millis(500),
            advertise: Some(url(address)),
            owner: Some(self.owner),
            limits: self.limits.clone(),
            ..ServerOptions::new(Arc::clone(&self.store), self.files.clone(), hub)
        };
        let stop = CancellationToken::new();
        let server = Server::new(options);
        (stop.clone(), tokio::spawn(async move { server.run(listener, stop).await }))
    }

    /// Changes the store behind its back while the server is away, to what an older program would have left.
    pub(crate) async fn as_before(&mut self, statements: &str) {
        self.store.close().await;
        let path = self.dir.path().join("remuda.db");
        rusqlite::Connection::open(&path).expect("the file").execute_batch(statements).expect("a change");
        let store = SqliteStore::open(&path, Options::new(self.owner)).await.expect("a store");
        self.store = Arc::new(store);
    }

    /// One more server of the installation, until it is told to stop.
    pub(crate) async fn another(&self) -> (SocketAddr, CancellationToken) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, _) = self.serve(listener, FrameHub::default());
        (address, stop)
    }

    pub(crate) async fn stop(&mut self) {
        if let Some((stop, server)) = self.server.take() {
            stop.cancel();
            server.await.expect("a good end");
        }
    }

    pub(crate) fn url(&self) -> Url {
        url(self.address)
    }

    pub(crate) fn source(&self, owner: OwnerId) -> GatewaySource {
        GatewaySource::new(&self.url(), Some(&self.key), owner).expect("a source")
    }

    /// A sidecar that holds a worker of its own.
    pub(crate) async fn sidecar(&self) -> Sidecar {
        let owner = OwnerId(Uuid::new_v4());
        let source = Arc::new(self.source(owner));
        let worker = WorkerId::new(format!("worker-{}", Uuid::new_v4())).expect("a name");
        let spec = WorkerSpec {
            id: worker.clone(),
            endpoint: "http://127.0.0.1:8188".to_owned(),
            name: None,
            labels: BTreeSet::new(),
        };
        let Acquired::Yes(row) = source.acquire_worker(spec).await.expect("an answer") else {
            panic!("a new worker is free")
        };
        Sidecar { source, owner, worker, fence: row.fence }
    }

    pub(crate) async fn submit(&self) -> TaskId {
        self.submit_with(|_| {}).await
    }

    pub(crate) async fn submit_with(&self, change: impl FnOnce(&mut NewTask)) -> TaskId {
        let mut new = NewTask::new(serde_json::from_str(GRAPH).expect("JSON"));
        change(&mut new);
        let id = new.id;
        self.store.submit(new).await.expect("taken in");
        id
    }

    pub(crate) async fn task(&self, id: TaskId) -> Task {
        self.store.task(id).await.expect("the store").expect("the task")
    }

    pub(crate) async fn get(&self, path: &str) -> reqwest::Response {
        self.get_from(self.address, path).await
    }

    pub(crate) async fn get_from(&self, server: SocketAddr, path: &str) -> reqwest::Response {
        let url = url(server).join(path).expect("a path");
        let request = reqwest::Client::new().get(url).bearer_auth(self.key.reveal());
        request.timeout(2 * BOUND).send().await.expect("an answer")
    }
}

/// A process elsewhere with one worker.
pub(crate) struct Sidecar {
    pub(crate) source: Arc<GatewaySource>,
    pub(crate) owner: OwnerId,
    pub(crate) worker: WorkerId,
    pub(crate) fence: Fence,
}

impl Sidecar {
    pub(crate) fn request(&self, wait: Duration) -> ClaimRequest {
        ClaimRequest {
            owner: self.owner,
            worker: self.worker.clone(),
            worker_fence: self.fence,
            capabilities: Arc::new(Capabilities::default()),
            loaded: Vec::new(),
            ahead: false,
            gateway: None,
            wait,
        }
    }

    pub(crate) async fn claim(&self) -> Claim {
        self.source.claim(self.request(BOUND)).await.expect("an answer").expect("a task")
    }

    /// Takes its own lease over, as a restarted process does: the fence rises.
    pub(crate) async fn adopt(&self) -> Claim {
        let request = AdoptRequest {
            owner: self.owner,
            worker: self.worker.clone(),
            worker_fence: self.fence,
            gateway: None,
            known: Vec::new(),
        };
        let mut claims = self.source.adopt(request).await.expect("an answer");
        assert_eq!(claims.len(), 1);
        claims.remove(0)
    }

    pub(crate) async fn deliver(
        &self,
        claim: &Claim,
        n: i32,
        bytes: ByteStream,
    ) -> Result<Delivered, SourceError> {
        let file = NewFile { n, filename: "a b/ü.png".to_owned(), size: None };
        self.source.deliver(claim.lease.reference(), claim.lease.attempt, file, bytes).await
    }

    /// Delivers one file and reports the end.
    pub(crate) async fn complete(&self, claim: &Claim, content: &'static [u8]) {
        let delivered = self.deliver(claim, 0, stream(content)).await.expect("delivered");
        let reply = self.source.end(claim.lease.reference(), completed(0, delivered)).await.expect("heard");
        assert!(!reply.repeated && !reply.discarded, "{reply:?}");
    }
}

pub(crate) fn url(server: SocketAddr) -> Url {
    format!("http://{server}").parse().expect("a URL")
}

pub(crate) fn stream(content: &'static [u8]) -> ByteStream {
    futures_util::stream::iter([Ok(bytes::Bytes::from_static(content))]).boxed()
}

/// A result with one file.
pub(crate) fn completed(n: i32, delivered: Delivered) -> Ending {
    let file = OutputFile {
        subfolder: String::new(),
        n,
        key: delivered.key,
        filename: "a.png".to_owned(),
        node_id: "9".to_owned(),
        output: "images".to_owned(),
        file_type: "output".to_owned(),
        mime: "image/png".to_owned(),
        size: i64::try_from(delivered.size).expect("small"),
        sha256: delivered.sha256,
    };
    let result = TaskResult { files: vec![file], ..TaskResult::default() };
    Ending::Completed { result, gpu_ms: Some(10) }
}

pub(crate) fn older(lease: LeaseRef) -> LeaseRef {
    LeaseRef { fence: Fence(lease.fence.0 - 1), ..lease }
}
