//! How a server behaves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use remuda_core::{OwnerId, Priority, Tenant};
use remuda_files::Files;
use remuda_frames::FrameHub;
use remuda_pool::{Pool, Pulse};
use remuda_preflight::{GraphLimits, Preflight};
use remuda_runner::ask::Addresses;
use remuda_store::{Descriptions, Store};
use url::Url;

use crate::share::Network;

/// How a server behaves, and what it stands on.
pub struct ServerOptions {
    /// The queue.
    pub store: Arc<dyn Store>,
    /// Outputs and uploads.
    pub files: Files,
    /// Live frames of tasks that run in this process, or on sidecars that report to it.
    pub hub: FrameHub,
    /// What a task gets that does not say otherwise.
    pub defaults: TaskDefaults,
    /// Bounds.
    pub limits: Limits,
    /// How large graphs may be.
    pub graph: GraphLimits,
    /// Labels that workers must have to get tasks of a tenant, whatever these ask for themselves.
    pub tenant_labels: BTreeMap<Tenant, BTreeSet<String>>,
    /// How the synchronous handler waits.
    pub sync: SyncOptions,
    /// Origins of web pages that may call the API, as `https://example.org`. None: CORS is off.
    pub cors_origins: Vec<String>,
    /// Further names under which this server is asked before there are keys, beside those of this machine.
    pub allowed_hosts: Vec<String>,
    /// Before there are keys, answer others than this machine.
    pub insecure: bool,
    /// Proxies that are believed when they say for whom they ask. None: every connection asks for itself.
    pub trusted_proxies: Vec<Network>,
    /// Where other gateways of the installation reach this one; also the name of this gateway on leases.
    pub advertise: Option<Url>,
    /// Under which name this process drives workers: those it may ask itself. None: it drives none.
    pub owner: Option<OwnerId>,
    /// The ComfyUIs that this process was told to drive, and no others: what it may ask itself.
    pub addresses: Addresses,
    /// What stands in front of the paths of files in answers. None: paths alone.
    pub public_url: Option<Url>,
    /// The files of ComfyUI's own page, in a folder that [`crate::frontend_folder`] found.
    pub frontend: Option<PathBuf>,
    /// Metrics of others, already registered; the server adds its own.
    pub registry: Registry,
    /// How long requests under way may take after the stop signal.
    pub drain: Duration,
    /// How long a lease of the store lasts: told to sidecars, which must beat more often.
    pub lease: Duration,
    /// The pre-flight of this process; [`ServerOptions::preflight`] makes it when there is none.
    pub preflight: Option<Arc<Preflight>>,
    /// Where large requests are worked on.
    pub pool: Pool,
    /// Whether the runtime turns. With a watchdog behind it, `/live` is answered even while it does not.
    pub pulse: Pulse,
}

impl ServerOptions {
    /// The defaults, on this ground.
    pub fn new(store: Arc<dyn Store>, files: Files, hub: FrameHub) -> Self {
        Self {
            store,
            files,
            hub,
            defaults: TaskDefaults::default(),
            limits: Limits::default(),
            graph: GraphLimits::default(),
            tenant_labels: BTreeMap::new(),
            sync: SyncOptions::default(),
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            insecure: false,
            trusted_proxies: Vec::new(),
            advertise: None,
            owner: None,
            addresses: Addresses::default(),
            public_url: None,
            frontend: None,
            registry: Registry::default(),
            drain: Duration::from_secs(10),
            lease: Duration::from_secs(30),
            preflight: None,
            pool: Pool::default(),
            pulse: Pulse::default(),
        }
    }
}

impl ServerOptions {
    /// The pre-flight for these options, made at the first call and shared from then on.
    pub fn preflight(&mut self) -> Arc<Preflight> {
        let made = || {
            let preflight = Preflight::new(Arc::clone(&self.store))
                .with_pool(self.pool.clone())
                .within(self.graph.clone())
                .longest(self.limits.body)
                .bound(self.tenant_labels.clone());
            Arc::new(preflight)
        };
        let preflight = self.preflight.take().unwrap_or_else(made);
        self.preflight = Some(Arc::clone(&preflight));
        preflight
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("store", &self.store)
            .field("limits", &self.limits)
            .field("insecure", &self.insecure)
            .finish_non_exhaustive()
    }
}

/// What a task gets that does not say otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskDefaults {
    /// How long it may render: 30 minutes.
    pub timeout_s: i32,
    /// How often it may fail and be tried again: 3.
    pub max_retries: i32,
    /// How urgent it is: 5.
    pub priority: Priority,
}

impl Default for TaskDefaults {
    fn default() -> Self {
        Self { timeout_s: 1800, max_retries: 3, priority: Priority::default() }
    }
}

/// How the synchronous handler waits.
#[derive(Debug, Clone, PartialEq)]
pub struct SyncOptions {
    /// How long a request waits that does not say otherwise: 5 minutes.
    pub timeout: Duration,
    /// The longest wait that can be asked for: a day.
    pub longest: Duration,
    /// How long a prompt waits while no worker is usable: 5 s.
    pub patience: Duration,
    /// How long the runner is waited for after a cancellation, so that the answer can say that it really stopped: 3 s.
    pub confirmation: Duration,
}

impl Default for SyncOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(300),
            longest: Duration::from_secs(86_400),
            patience: Duration::from_secs(5),
            confirmation: Duration::from_secs(3),
        }
    }
}

/// Bounds on what a server takes at once. What there is so many of at once is shared: alone a tenant, or an address, gets three
/// quarters, and there is always something for whoever comes with nothing. Beyond its share a guest is answered 429, and when
/// nothing is left 503.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// The longest body of a request, uploads excepted: 32 MiB.
    pub body: u64,
    /// The largest uploaded file: 8 GiB.
    pub asset: u64,
    /// The largest file of a result that a sidecar delivers: 64 GiB.
    pub output: u64,
    /// Files that one task may bring back from a sidecar: 20,000.
    pub task_files: u32,
    /// … and their bytes, together: 1 TiB.
    pub task_outputs: u64,
    /// Workers that one key may register: 256.
    pub key_workers: u32,
    /// Descriptions of nodes that the workers of one key may bring: 1,024, and 2 GiB together.
    pub key_descriptions: Descriptions,
    /// Bytes of bodies and answers in memory at once: 256 MiB, and never less than four times the longest body.
    pub memory: u64,
    /// Connections: 8192. Beyond them the oldest idle ones are closed.
    pub connections: usize,
    /// Connections of one address that is neither this machine's nor a trusted proxy's: 2048.
    pub connections_per_address: usize,
    /// Requests per second of one tenant, and of one address that is neither this machine's nor a trusted proxy's: 20,000. Zero:
    /// any number.
    pub rate: u64,
    /// Bodies of submissions in memory at once: 128.
    pub submissions: usize,
    /// Uploads at once: 128.
    pub uploads: usize,
    /// Files of results that sidecars deliver at once: 512. Further ones wait.
    pub deliveries: usize,
    /// Downloads at once: 1024.
    pub downloads: usize,
    /// Event streams, websockets and waiting requests at once: 8192.
    pub waiting: usize,
    /// Readers of the feed of all events that one tenant may have at once: 512.
    pub feed_readers: usize,
    /// Synchronous requests at once, from their receipt to the end of their answers: 1024.
    pub sync: usize,
    /// Waiting requests of sidecars at once, claims and beats together: 16,384. Readers of events never take their place.
    pub sidecars: usize,
    /// How long a client may take for the head of a request, and how long a connection may be idle: 30 s.
    pub head_time: Duration,
    /// How long a client may take for a body, and between two pieces of an upload: 60 s.
    pub body_time: Duration,
    /// An upload that brings fewer bytes in a second than this, taken over `body_time`, is broken off: 1 KiB.
    pub body_rate: u64,
    /// A reader that takes nothing for this long is cut off: 30 s.
    pub write_time: Duration,
    /// After this long without an event a stream of events shows a sign of life: 15 s.
    pub heartbeat: Duration,
    /// Wrong keys of one address within a minute, before the answers to further ones are held back: 20.
    pub login_failures: u32,
    /// How long they are held back: 1 s.
    pub login_delay: Duration,
    /// Messages that one websocket may send in a minute: 1200.
    pub messages: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 32 << 20,
            asset: 8 << 30,
            output: 64 << 30,
            task_files: 20_000,
            task_outputs: 1 << 40,
            key_workers: 256,
            key_descriptions: Descriptions { most: 1024, bytes: 2 << 30 },
            memory: 256 << 20,
            connections: 8192,
            connections_per_address: 2048,
            rate: 20_000,
            submissions: 128,
            uploads: 128,
            deliveries: 512,
            downloads: 1024,
            waiting: 8192,
            feed_readers: 512,
            sync: 1024,
            sidecars: 16_384,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(60),
            body_rate: 1 << 10,
            write_time: Duration::from_secs(30),
            heartbeat: Duration::from_secs(15),
            login_failures: 20,
            login_delay: Duration::from_secs(1),
            messages: 1200,
        }
    }
}
