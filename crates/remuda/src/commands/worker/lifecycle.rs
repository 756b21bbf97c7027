//! What every worker goes through, whatever it works for: settings, data directory, ComfyUIs, connection, work, drain.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use remuda_runner::source::Source;
use remuda_runner::{Herd, HerdOptions, WorkerConfig};

use crate::config::Settings;
use crate::instance::{Owner, Simulators};
use crate::process::Process;
use crate::stop::Stop;
use crate::ui;

/// What a source of tasks brings to be served by a worker.
pub(super) trait Serve: Sized {
    /// What there is while it is served, and must be ended.
    type Connection: Connection;

    /// From the settings. What is wrong with them is told here, before anything begins.
    fn read(settings: &Settings) -> anyhow::Result<Self>;

    /// The ComfyUIs that work for it: one at least.
    fn workers(&self, settings: &Settings, simulators: &Simulators) -> anyhow::Result<Vec<WorkerConfig>>;

    /// Connects. It may wait as long as it likes: a stop ends it.
    async fn connect(self, around: &Around) -> anyhow::Result<Connected<Self::Connection>>;
}

/// What there is before a source is connected.
pub(super) struct Around {
    pub(super) settings: Settings,
    pub(super) owner: Owner,
    pub(super) process: Process,
    pub(super) workers: Vec<WorkerConfig>,
}

/// A source that can be worked for.
pub(super) struct Connected<C> {
    pub(super) source: Arc<dyn Source>,
    pub(super) herd: HerdOptions,
    /// The first line for people; `{workers}` stands for the names of the ComfyUIs.
    pub(super) line: String,
    /// The first line for programs; the names are added.
    pub(super) json: serde_json::Value,
    pub(super) connection: C,
}

/// A source that is worked for.
pub(super) trait Connection {
    /// Stops the work: what renders may end within the drain. Then everything is let go of.
    async fn end(self, herd: &Herd, drain: Duration);
}

/// Works until it is told to stop.
pub(super) async fn run_worker<S: Serve>(
    settings: Settings,
    mut stop: Stop,
    json: bool,
) -> anyhow::Result<ExitCode> {
    settings.log.install("info")?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let serve = S::read(&settings)?;
    let owner = Owner::take(&settings.server.data)?;
    let process = Process::start(&settings)?;
    let simulators = Simulators::start(settings.workers.sim).await?;
    let workers = serve.workers(&settings, &simulators)?;
    let mut around = Around { settings, owner, process, workers };
    let connected = tokio::select! {
        connected = serve.connect(&around) => connected?,
        () = stop.requested() => return Ok(ExitCode::SUCCESS),
    };
    let Connected { source, herd, line, json: mut told, connection } = connected;
    let herd = Herd::start(source, around.process.equip(herd));
    let names: Vec<String> = around.workers.iter().map(|worker| worker.spec.id.to_string()).collect();
    for worker in around.workers.drain(..) {
        herd.add(worker);
    }
    if json {
        told["workers"] = names.into();
        ui::json(&told)?;
    } else {
        ui::line(format_args!("{} Ctrl-C stops it.", line.replace("{workers}", &names.join(", "))))?;
    }
    stop.requested().await;
    let drain = around.settings.tasks.drain;
    tracing::info!(drain_s = drain.as_secs(), "stopping; a second signal stops at once");
    let stopped = async {
        connection.end(&herd, drain).await;
        simulators.stop().await;
    };
    tokio::select! {
        () = stopped => Ok(ExitCode::SUCCESS),
        () = stop.requested() => Ok(ExitCode::FAILURE),
    }
}
