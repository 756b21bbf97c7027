//! One running Remuda: its data directory, store, files, workers and server, put together.
//!
//! The only place that knows everybody. `serve` and `demo` start the same thing.

mod descriptors;
mod metrics;
mod owner;
mod private;
mod secrets;
#[cfg_attr(not(feature = "sim"), path = "without_simulators.rs")]
mod simulators;
mod store;
mod timing;
mod workers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use remuda_core::{OwnerId, Priority};
use remuda_frames::FrameHub;
use remuda_runner::source::QueueSource;
use remuda_runner::{Herd, WorkerConfig};
use remuda_server::janitor::{Janitor, JanitorOptions};
use remuda_server::keys_socket::KeysSocket;
use remuda_server::{Server, ServerOptions, frontend_folder};
use remuda_store::{Descriptions, Store};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use owner::Owner;
pub(crate) use simulators::{OR_SIMULATE, Simulators};
pub(crate) use store::{open_files, open_store};
pub(crate) use timing::{herd_options, result_limits};
pub(crate) use workers::{comfyui_limits, worker_configs};

use crate::config::Settings;
use crate::process::Process;

/// A server with its queue and its workers, until it is stopped.
#[derive(Debug)]
pub(crate) struct Instance {
    owner: Owner,
    address: SocketAddr,
    store: Arc<dyn Store>,
    files: remuda_files::Files,
    herd: Herd,
    simulators: Simulators,
    stop: CancellationToken,
    ended: CancellationToken,
    tasks: TaskTracker,
    drain: Duration,
    process: Process,
}

/// Ends what this process left under way, before its restart, on workers that the settings do not name any more.
async fn retire_others(store: &dyn Store, herd: &Herd, owner: OwnerId) -> anyhow::Result<()> {
    for worker in store.workers().await?.iter().filter(|worker| worker.owner == owner) {
        // One that is driven is left alone.
        if let Ok(client) = comfyui::Client::new(&worker.spec.endpoint) {
            herd.retire(WorkerConfig::new(worker.spec.clone(), client));
        }
    }
    Ok(())
}

impl Instance {
    /// Starts everything the settings name. When it returns, the server answers.
    pub(crate) async fn start(settings: &Settings) -> anyhow::Result<Self> {
        let frontend = settings.server.frontend.as_deref().map(frontend_folder).transpose()?;
        let owner = Owner::take(&settings.server.data)?;
        let process = Process::start(settings)?;
        let store = open_store(settings, owner.id).await?;
        process.tell(&*store, owner.id).await?;
        let installation = store.installation().await?;
        let files = open_files(settings, &*store, &installation).await?;
        let listen = &settings.server.listen;
        let keys = store.keys().await?;
        anyhow::ensure!(
            listen.is_loopback()
                || settings.server.insecure
                || keys.iter().any(|key| key.revoked_at.is_none()),
            "{listen} can be reached from other machines, and there is no key yet: make one with `remuda keys make`, \
             or say --insecure if everybody may use it"
        );
        let listener = TcpListener::bind((listen.host.as_str(), listen.port))
            .await
            .with_context(|| format!("cannot listen on {listen}: choose another address with --listen"))?;
        let address = listener.local_addr()?;
        let advertise = match &settings.server.advertise {
            Some(url) => Some(url.clone()),
            // Nobody can call a wildcard address; without --advertise such a server relays no frames.
            None if address.ip().is_unspecified() => None,
            None => Some(format!("http://{address}").parse()?),
        };

        let hub = FrameHub::default();
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let mut options = ServerOptions::new(Arc::clone(&store), files.clone(), hub.clone());
        options.defaults.timeout_s = i32::try_from(settings.tasks.timeout.as_secs()).unwrap_or(i32::MAX);
        options.defaults.max_retries = i32::try_from(settings.tasks.max_retries).unwrap_or(i32::MAX);
        options.defaults.priority = Priority::new(settings.tasks.priority.into())?;
        options.limits = settings.door.limits(descriptors::raise());
        options.trusted_proxies.clone_from(&settings.door.trusted_proxies);
        options.limits.body = settings.server.body_limit;
        options.limits.login_failures = settings.server.login_failures;
        options.limits.output = settings.tasks.max_output_size;
        options.limits.task_files = u32::try_from(settings.graph.output_files).unwrap_or(u32::MAX);
        options.limits.task_outputs = settings.tasks.max_output_total;
        options.limits.key_workers = settings.workers.max_per_key;
        options.limits.key_descriptions = Descriptions {
            most: settings.workers.max_object_infos,
            bytes: settings.workers.max_object_infos_size,
        };
        options.limits.sync = settings.sync.limit;
        options.graph = settings.graph.clone();
        options.tenant_labels.clone_from(&settings.tasks.tenant_labels);
        options.sync.timeout = settings.sync.timeout;
        options.cors_origins.clone_from(&settings.server.cors_origins);
        options.allowed_hosts.clone_from(&settings.server.allowed_hosts);
        options.insecure = settings.server.insecure;
        options.advertise.clone_from(&advertise);
        options.owner = Some(owner.id);
        options.frontend = frontend;
        options.lease = settings.tasks.lease;
        options.pool = process.pool.clone();
        options.pulse = process.pulse.clone();
        let addresses = options.addresses.clone();
        let preflight = options.preflight();
        let source = QueueSource::new(Arc::clone(&store), preflight, files.clone(), hub.clone(), owner.id)
            .largest_output(settings.tasks.max_output_size);
        let gateway = advertise.as_ref().map(|url| url.as_str().trim_end_matches('/').to_owned());
        let herd_options = process.equip(herd_options(owner.id, gateway, settings.tasks.lease, settings));
        let herd = Herd::start(Arc::new(source), herd_options);

        metrics::register(&mut options.registry, herd.counters());
        let server = Server::new(options);
        let keys = server.keys();
        let ended = CancellationToken::new();
        tasks.spawn(noticed(server.run(listener, stop.clone()), ended.clone()));
        let mut janitor = JanitorOptions::new(Arc::clone(&store), files.clone(), owner.id);
        janitor.retention = Some(settings.store.retention);
        janitor.descriptions = settings.workers.object_info_retention;
        tasks.spawn(noticed(Janitor::new(janitor).run(stop.clone()), ended.clone()));
        // Opened here: when it is told that the server answers, `remuda keys` must find it.
        let socket = KeysSocket::open(&settings.server.data);
        tasks.spawn({
            let stop = stop.clone();
            async move {
                let served = match socket {
                    Ok(socket) => socket.serve(keys, stop).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = served {
                    tracing::warn!(%error, "`remuda keys` cannot reach this server");
                }
            }
        });

        let simulators = Simulators::start(settings.workers.sim).await?;
        for worker in worker_configs(settings, &simulators, None)? {
            addresses.add(worker.spec.id.clone(), worker.spec.endpoint.clone());
            herd.add(worker);
        }
        retire_others(&*store, &herd, owner.id).await?;
        let drain = settings.tasks.drain;
        Ok(Self { owner, address, store, files, herd, simulators, stop, ended, tasks, drain, process })
    }

    /// Where it answers.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many workers it drives or would drive.
    pub(crate) fn workers(&self) -> usize {
        self.herd.status().workers.len()
    }

    /// Ends when a part without which there is no service ended: nobody should go on claiming tasks then.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Takes no new work, gives back what did not begin, waits for the rest as long as the settings say, and leaves
    /// what is still running to be adopted at the next start.
    pub(crate) async fn stop(self) {
        // The API stays until the runners are done, so that sidecars and clients see the ends of their tasks.
        self.herd.stop(self.drain).await;
        for worker in self.simulators.workers() {
            // Simulators inside this process never come back; their names would stay in lists as workers that are gone.
            if let Err(error) = self.store.forget_worker(&worker).await {
                tracing::debug!(%error, %worker, "a simulated worker could not be forgotten");
            }
        }
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.store.close().await;
        self.files.settled().await;
        self.simulators.stop().await;
        drop(self.process);
        drop(self.owner);
    }
}

/// Runs a part of the service, and says when it ended, also by a panic.
async fn noticed(part: impl Future<Output = ()>, ended: CancellationToken) {
    let _guard = ended.drop_guard();
    part.await;
}
