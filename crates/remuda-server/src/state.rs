//! What all handlers share.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::{Installation, Task, TaskId};
use remuda_files::Files;
use remuda_pool::{Pool, Pulse};
use remuda_runner::GraphLimits;
use remuda_runner::frames::FrameHub;
use remuda_runner::preflight::Preflight;
use remuda_store::Store;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::access::{Caller, Failures, Hosts, KeyCache};
use crate::changes::Changes;
use crate::error::{ApiError, ApiResult};
use crate::metrics::Metrics;
use crate::native::prompts::Numbers;
use crate::native::{Desk, Fleet, Frontend};
use crate::options::{Limits, ServerOptions, SyncOptions, TaskDefaults};
use crate::permits::Permits;
use crate::relay::Relays;
use crate::routes::{LargeInputs, Live};
use crate::share::{Proxies, Rates, Room};
use crate::sync::Lookout;

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
    pub(crate) pool: Pool,
    pub(crate) pulse: Pulse,
    pub(crate) keys: KeyCache,
    pub(crate) hosts: Hosts,
    /// Wrong keys, by address.
    pub(crate) failures: Failures,
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
    /// Bytes of bodies and answers under way.
    pub(crate) memory: Room,
    pub(crate) rates: Rates,
    pub(crate) proxies: Proxies,
    /// Large graphs that somebody reads at this moment.
    pub(crate) large: LargeInputs,
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
            preflight: Preflight::new(options.store.clone())
                .with_pool(options.pool.clone())
                .within(options.graph.clone())
                .longest(options.limits.body)
                .bound(options.tenant_labels),
            pool: options.pool.clone(),
            pulse: options.pulse,
            keys: KeyCache::new(options.store.clone()),
            hosts,
            failures: Failures::new(options.limits.login_failures, options.limits.login_delay),
            changes: Changes::default(),
            relays: Relays::new(),
            live: Live::default(),
            desk: Desk::default(),
            frontend: options.frontend.as_deref().map(Frontend::new),
            fleet: Fleet::new(options.owner, options.addresses, options.pool),
            numbers: Numbers::default(),
            metrics,
            permits: Permits::new(&options.limits),
            memory: Room::new(options.limits.memory.max(4 * options.limits.body)),
            rates: Rates::new(options.limits.rate),
            proxies: Proxies::new(options.trusted_proxies),
            large: LargeInputs::default(),
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
