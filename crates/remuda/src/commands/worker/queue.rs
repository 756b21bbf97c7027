//! `remuda worker --source queue`: claiming from the queue of a Remuda.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use remuda_core::ApiKey;
use remuda_frames::FrameHub;
use remuda_preflight::Preflight;
use remuda_runner::source::{GatewaySource, QueueSource, Source, SourceError};
use remuda_runner::{Herd, WorkerConfig};
use remuda_store::Store;
use serde_json::json;

use super::WorkerSource;
use super::lifecycle::{Around, Connected, Connection, Serve, run_worker};
use crate::config::{QueueLink, Settings};
use crate::instance::{OR_SIMULATE, Simulators, herd_options, open_files, open_store, worker_configs};

pub(super) const SOURCE: WorkerSource = WorkerSource {
    name: "queue",
    settings: &[],
    run: |settings, stop, json| Box::pin(run_worker::<Queue>(settings, stop, json)),
};

/// The queue of a Remuda, and how it is reached.
struct Queue(QueueLink);

impl Serve for Queue {
    type Connection = Link;

    fn read(settings: &Settings) -> anyhow::Result<Self> {
        Ok(Self(settings.worker.queue()?.clone()))
    }

    fn workers(&self, settings: &Settings, simulators: &Simulators) -> anyhow::Result<Vec<WorkerConfig>> {
        let workers = worker_configs(settings, simulators, settings.worker.id.as_deref())?;
        anyhow::ensure!(
            !workers.is_empty(),
            "no ComfyUI to work with: give one with --comfyui URL{OR_SIMULATE}"
        );
        Ok(workers)
    }

    async fn connect(self, around: &Around) -> anyhow::Result<Connected<Link>> {
        let (settings, owner) = (&around.settings, around.owner.id);
        let (source, connection) = connect(&self.0, around).await?;
        if let Link::Store(store) = &connection {
            around.process.tell(&**store, owner).await?;
        }
        let lease = lease(&connection, settings.tasks.lease).await?;
        Ok(Connected {
            source,
            herd: herd_options(owner, None, lease, settings),
            line: format!("Working for {} as {{workers}}.", self.0),
            json: json!({"source": self.0.to_string()}),
            connection,
        })
    }
}

/// What must be closed at the end.
enum Link {
    Gateway(Arc<GatewaySource>),
    Store(Arc<dyn Store>),
}

impl Connection for Link {
    async fn end(self, herd: &Herd, drain: Duration) {
        herd.stop(drain).await;
        match self {
            Self::Gateway(gateway) => gateway.close().await,
            Self::Store(store) => store.close().await,
        }
    }
}

/// How long a lease lasts: what the server says, since it decides when one has run out. Waits for the server to come up; a
/// refused key is the end.
async fn lease(connection: &Link, own: Duration) -> anyhow::Result<Duration> {
    let Link::Gateway(gateway) = connection else { return Ok(own) };
    let mut told = false;
    loop {
        match gateway.lease().await {
            Ok(lease) => return Ok(lease.unwrap_or(own)),
            Err(SourceError::Unavailable(reason)) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%reason, "the server does not answer yet; waiting for it");
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn connect(link: &QueueLink, around: &Around) -> anyhow::Result<(Arc<dyn Source>, Link)> {
    let Around { settings, owner, process, .. } = around;
    match link {
        QueueLink::Server { url, key } => {
            let key = key.as_ref().map(|key| ApiKey::presented(key.reveal()));
            let source = GatewaySource::new(url, key.as_ref(), owner.id)
                .with_context(|| format!("cannot speak to {url}"))?;
            let source = Arc::new(source.with_pool(process.pool.clone()));
            Ok((Arc::clone(&source) as Arc<dyn Source>, Link::Gateway(source)))
        }
        QueueLink::Store(_) => {
            let store = open_store(settings, owner.id).await?;
            let installation = store.installation().await?;
            let files = open_files(settings, &*store, &installation).await?;
            let preflight = Arc::new(Preflight::new(Arc::clone(&store)).with_pool(process.pool.clone()));
            let source =
                QueueSource::new(Arc::clone(&store), preflight, files, FrameHub::default(), owner.id)
                    .largest_output(settings.tasks.max_output_size);
            Ok((Arc::new(source), Link::Store(store)))
        }
    }
}
