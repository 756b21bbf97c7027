//! What all handlers share.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::Installation;
use remuda_files::Files;
use remuda_frames::FrameHub;
use remuda_pool::{Pool, Pulse};
use remuda_preflight::GraphLimits;
use remuda_preflight::Preflight;
use remuda_store::Store;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::access::{Failures, Hosts, KeyCache};
use crate::changes::Changes;
use crate::feed::Feed;
use crate::metrics::Metrics;
use crate::native::prompts::Numbers;
use crate::native::{Catalogue, Desk, Frontend};
use crate::options::{Limits, ServerOptions, SyncOptions, TaskDefaults};
use crate::permits::Permits;
use crate::relay::Relays;
use crate::routes::{LargeInputs, Live};
use crate::service::Bringing;
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
    pub(crate) preflight: Arc<Preflight>,
    pub(crate) pool: Pool,
    pub(crate) pulse: Pulse,
    pub(crate) keys: KeyCache,
    pub(crate) hosts: Hosts,
    /// Wrong keys, by address.
    pub(crate) failures: Failures,
    pub(crate) changes: Changes,
    pub(crate) feed: Feed,
    pub(crate) relays: Relays,
    pub(crate) live: Live,
    pub(crate) desk: Desk,
    pub(crate) frontend: Option<Frontend>,
    pub(crate) catalogue: Catalogue,
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
    /// Bytes of uploads under way, by tenant.
    pub(crate) bringing: Bringing,
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
    pub(crate) fn new(mut options: ServerOptions) -> Self {
        let hosts = Hosts::new(&options);
        let preflight = options.preflight();
        let metrics = Metrics::new(options.registry);
        Self(Arc::new(Shared {
            preflight,
            pool: options.pool.clone(),
            pulse: options.pulse,
            keys: KeyCache::new(options.store.clone()),
            hosts,
            failures: Failures::new(options.limits.login_failures, options.limits.login_delay),
            changes: Changes::default(),
            feed: Feed::default(),
            relays: Relays::new(),
            live: Live::default(),
            desk: Desk::default(),
            frontend: options.frontend.as_deref().map(Frontend::new),
            catalogue: Catalogue::new(options.owner, options.addresses, options.pool),
            numbers: Numbers::default(),
            metrics,
            permits: Permits::new(&options.limits),
            memory: Room::new(options.limits.memory.max(4 * options.limits.body)),
            rates: Rates::new(options.limits.rate),
            bringing: Bringing::default(),
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
}
