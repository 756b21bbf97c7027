//! What all handlers share.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::{Installation, Task, TaskId};
use remuda_files::Files;
use remuda_runner::GraphLimits;
use remuda_runner::frames::FrameHub;
use remuda_runner::preflight::Preflight;
use remuda_store::Store;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::access::{Caller, Hosts, KeyCache};
use crate::changes::Changes;
use crate::error::{ApiError, ApiResult};
use crate::metrics::Metrics;
use crate::native::prompts::Numbers;
use crate::native::{Desk, Fleet, Frontend};
use crate::options::{Limits, ServerOptions, SyncOptions, TaskDefaults};
use crate::relay::Relays;
use crate::routes::Live;
use crate::sync::Lookout;

/// So long a submission waits for others to make room.
const PATIENCE: Duration = Duration::from_secs(10);

/// What all handlers share. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct AppState(Arc<Shared>);

/// The ground under the handlers.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) files: Files,
    pub(crate) hub: FrameHub,
    pub(crate) preflight: Preflight,
    pub(crate) keys: KeyCache,
    pub(crate) hosts: Hosts,
    pub(crate) changes: Changes,
    pub(crate) relays: Relays,
    pub(crate) live: Live,
    pub(crate) desk: Desk,
    pub(crate) frontend: Option<Frontend>,
    pub(crate) fleet: Fleet,
    pub(crate) numbers: Numbers,
    pub(crate) metrics: Metrics,
    pub(crate) defaults: TaskDefaults,
    pub(crate) limits: Limits,
    /// How large graphs and their results may be.
    pub(crate) graph: GraphLimits,
    pub(crate) sync: SyncOptions,
    pub(crate) lookout: Lookout,
    /// How long a lease of the store lasts.
    pub(crate) lease: Duration,
    pub(crate) cors_origins: Vec<String>,
    pub(crate) advertise: Option<Url>,
    pub(crate) public_url: Option<Url>,
    pub(crate) permits: Permits,
    /// Long waits and streams end when it is cancelled.
    pub(crate) stop: CancellationToken,
    /// What handlers leave running: streams of events, relays.
    pub(crate) tasks: TaskTracker,
    installation: OnceCell<Installation>,
}

impl Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl AppState {
    pub(crate) fn new(options: ServerOptions) -> Self {
        let hosts = Hosts::new(&options);
        let metrics = Metrics::new(options.registry);
        Self(Arc::new(Shared {
            preflight: Preflight::new(options.store.clone()).within(options.graph.clone()),
            keys: KeyCache::new(options.store.clone()),
            hosts,
            changes: Changes::default(),
            relays: Relays::new(),
            live: Live::default(),
            desk: Desk::default(),
            frontend: options.frontend.as_deref().map(Frontend::new),
            fleet: Fleet::new(options.owner),
            numbers: Numbers::default(),
            metrics,
            permits: Permits::new(&options.limits),
            store: options.store,
            files: options.files,
            hub: options.hub,
            defaults: options.defaults,
            limits: options.limits,
            graph: options.graph,
            sync: options.sync,
            lookout: Lookout::default(),
            lease: options.lease,
            cors_origins: options.cors_origins,
            advertise: options.advertise,
            public_url: options.public_url,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            installation: OnceCell::new(),
        }))
    }
}

impl Shared {
    /// Which installation this is. It never changes, so it is asked for once.
    pub(crate) async fn installation(&self) -> remuda_store::Result<&Installation> {
        self.installation.get_or_try_init(|| self.store.installation()).await
    }

    /// Whether this is the gateway that a lease names, or it names none.
    pub(crate) fn is_here(&self, gateway: Option<&str>) -> bool {
        let here = self.advertise.as_ref().map(|here| here.as_str().trim_end_matches('/'));
        gateway.is_none_or(|gateway| Some(gateway.trim_end_matches('/')) == here)
    }

    /// A task that the caller may see. Another tenant's is not there.
    pub(crate) async fn task(&self, caller: &Caller, id: TaskId) -> ApiResult<Task> {
        match self.store.task(id).await? {
            Some(task) if caller.sees(&task.tenant) => Ok(task),
            _ => Err(ApiError::no_task(id)),
        }
    }
}

/// How many of the expensive requests may be under way.
#[derive(Debug)]
pub(crate) struct Permits {
    submissions: Arc<Semaphore>,
    uploads: Arc<Semaphore>,
    deliveries: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    sync: Arc<Semaphore>,
    sidecars: Arc<Semaphore>,
}

impl Permits {
    fn new(limits: &Limits) -> Self {
        let make = |count| Arc::new(Semaphore::new(count));
        Self {
            submissions: make(limits.submissions),
            uploads: make(limits.uploads),
            deliveries: make(limits.deliveries),
            downloads: make(limits.downloads),
            waiting: make(limits.waiting),
            sync: make(limits.sync),
            sidecars: make(limits.sidecars),
        }
    }

    /// Waits, but not for long: submissions are short, unless their bodies come slowly.
    pub(crate) async fn submission(&self) -> ApiResult<OwnedSemaphorePermit> {
        match tokio::time::timeout(PATIENCE, self.submissions.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(ApiError::busy("submissions")),
        }
    }

    pub(crate) fn upload(&self) -> ApiResult<OwnedSemaphorePermit> {
        self.uploads.clone().try_acquire_owned().map_err(|_| ApiError::busy("uploads"))
    }

    /// Waits: a result that is there already is not turned away.
    pub(crate) async fn delivery(&self) -> ApiResult<OwnedSemaphorePermit> {
        self.deliveries.clone().acquire_owned().await.map_err(|_| ApiError::busy("deliveries"))
    }

    pub(crate) fn download(&self) -> ApiResult<OwnedSemaphorePermit> {
        self.downloads.clone().try_acquire_owned().map_err(|_| ApiError::busy("downloads"))
    }

    /// For the claims and beats of sidecars, on which leases depend.
    pub(crate) fn sidecar(&self) -> ApiResult<OwnedSemaphorePermit> {
        self.sidecars.clone().try_acquire_owned().map_err(|_| ApiError::busy("sidecars"))
    }

    pub(crate) fn sync(&self) -> ApiResult<OwnedSemaphorePermit> {
        self.sync.clone().try_acquire_owned().map_err(|_| ApiError::busy("synchronous requests"))
    }

    pub(crate) fn waiting(&self) -> ApiResult<OwnedSemaphorePermit> {
        self.waiting.clone().try_acquire_owned().map_err(|_| ApiError::busy("waiting requests"))
    }
}
