//! `remuda worker --source queue`: claiming from the queue of a Remuda.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use remuda_core::ApiKey;
use remuda_frames::FrameHub;
use remuda_preflight::Preflight;
use remuda_runner::Herd;
use remuda_runner::source::{GatewaySource, QueueSource, Source, SourceError};
use remuda_store::Store;

use crate::config::{QueueLink, Settings};
use crate::instance::{OR_SIMULATE, Owner, Simulators, herd_options, open_files, open_store, worker_configs};
use crate::process::Process;
use crate::stop::Stop;
use crate::ui;

/// Runs until it is told to stop.
pub(super) async fn run(settings: Settings, mut stop: Stop, json: bool) -> anyhow::Result<ExitCode> {
    let link = settings.worker.queue()?.clone();
    settings.log.install("info")?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let owner = Owner::take(&settings.server.data)?;
    let process = Process::start(&settings)?;
    let (source, connection) = connect(&settings, &link, &owner, &process).await?;
    if let Connection::Store(store) = &connection {
        process.tell(&**store, owner.id).await?;
    }
    let lease = tokio::select! {
        lease = lease(&connection, settings.tasks.lease) => lease?,
        () = stop.requested() => return Ok(ExitCode::SUCCESS),
    };
    let from = link.to_string();
    let simulators = Simulators::start(settings.workers.sim).await?;
    let workers = worker_configs(&settings, &simulators, settings.worker.id.as_deref())?;
    anyhow::ensure!(!workers.is_empty(), "no ComfyUI to work with: give one with --comfyui URL{OR_SIMULATE}");
    let herd = Herd::start(source, process.equip(herd_options(owner.id, None, lease, &settings)));
    let names: Vec<String> = workers.iter().map(|worker| worker.spec.id.to_string()).collect();
    for worker in workers {
        herd.add(worker);
    }
    if json {
        ui::json(&serde_json::json!({"source": from, "workers": names}))?;
    } else {
        ui::line(format_args!("Working for {from} as {}. Ctrl-C stops it.", names.join(", ")))?;
    }
    stop.requested().await;
    tracing::info!(drain_s = settings.tasks.drain.as_secs(), "stopping; once more stops at once");
    let stopped = async {
        herd.stop(settings.tasks.drain).await;
        match connection {
            Connection::Gateway(gateway) => gateway.close().await,
            Connection::Store(store) => store.close().await,
        }
        simulators.stop().await;
    };
    tokio::select! {
        () = stopped => Ok(ExitCode::SUCCESS),
        () = stop.requested() => Ok(ExitCode::FAILURE),
    }
}

/// How long a lease lasts: what the server says, since it decides when one has run out. Waits for the server to come up; a
/// refused key is the end.
async fn lease(connection: &Connection, own: Duration) -> anyhow::Result<Duration> {
    let Connection::Gateway(gateway) = connection else { return Ok(own) };
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

/// What must be closed at the end.
enum Connection {
    Gateway(Arc<GatewaySource>),
    Store(Arc<dyn Store>),
}

async fn connect(
    settings: &Settings,
    link: &QueueLink,
    owner: &Owner,
    process: &Process,
) -> anyhow::Result<(Arc<dyn Source>, Connection)> {
    match link {
        QueueLink::Server { url, key } => {
            let key = key.as_ref().map(|key| ApiKey::presented(key.reveal()));
            let source = GatewaySource::new(url, key.as_ref(), owner.id)
                .with_context(|| format!("cannot speak to {url}"))?;
            let source = Arc::new(source.with_pool(process.pool.clone()));
            Ok((Arc::clone(&source) as Arc<dyn Source>, Connection::Gateway(source)))
        }
        QueueLink::Store(_) => {
            let store = open_store(settings, owner.id).await?;
            let installation = store.installation().await?;
            let files = open_files(settings, &*store, &installation).await?;
            let preflight = Arc::new(Preflight::new(Arc::clone(&store)).with_pool(process.pool.clone()));
            let source =
                QueueSource::new(Arc::clone(&store), preflight, files, FrameHub::default(), owner.id)
                    .largest_output(settings.tasks.max_output_size);
            Ok((Arc::new(source), Connection::Store(store)))
        }
    }
}
