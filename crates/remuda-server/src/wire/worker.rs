//! A worker as the API shows it.

use jiff::Timestamp;
use remuda_core::{Health, Worker, WorkerStatus};
use serde::Serialize;
use url::Url;
use utoipa::ToSchema;

/// One ComfyUI.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerView {
    /// Its name.
    pub(crate) id: String,
    /// For people: a container's, pod's or host's name.
    pod_name: String,
    /// `pending`, `starting`, `idle`, `running`, `stopped` or `error`.
    #[schema(value_type = String, example = "idle")]
    status: &'static str,
    /// Where its ComfyUI answers. Only for keys with the scope `admin`; null for others.
    endpoint: Option<String>,
    /// The port of the endpoint. Only for keys with the scope `admin`; null for others.
    port: Option<u16>,
    /// The task under way, if you may see it.
    pub(crate) current_task_id: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    last_active_at: Timestamp,
    /// Whether it gets tasks.
    health_status: bool,
    /// `starting`, `healthy`, `busy`, `unreachable`, `zombie`, `quarantined`, `draining`, or `silent` when its process does not report.
    #[schema(value_type = String)]
    health: &'static str,
    /// Why it is not well.
    reason: Option<String>,
    /// Given by its configuration.
    labels: Vec<String>,
    /// ComfyUI's version.
    version: Option<String>,
    /// The GPU, as ComfyUI names it.
    device: Option<String>,
    /// Free memory of the GPU, in bytes.
    vram_free: Option<i64>,
    /// All memory of the GPU, in bytes.
    vram_total: Option<i64>,
}

/// All workers, by name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerList {
    pub(crate) workers: Vec<WorkerView>,
}

/// The status of a worker, and whether its process still reports.
pub(crate) fn status_of(worker: &Worker, now: Timestamp) -> (WorkerStatus, bool) {
    let silent = worker.until < now;
    let status = match worker.report.health.status() {
        WorkerStatus::Stopped => WorkerStatus::Stopped,
        _ if silent => WorkerStatus::Error,
        status => status,
    };
    (status, !silent)
}

/// How texts may name an endpoint: the whole address, host and port, the host.
fn places(endpoint: &str) -> Vec<String> {
    let Ok(url) = Url::parse(endpoint) else { return Vec::new() };
    let Some(host) = url.host_str() else { return Vec::new() };
    let port = url.port_or_known_default().map(|port| format!("{host}:{port}"));
    let whole = endpoint.trim_end_matches('/').to_owned();
    [Some(whole), port, Some(host.to_owned())].into_iter().flatten().filter(|place| place.len() > 2).collect()
}

fn text(status: WorkerStatus) -> &'static str {
    match status {
        WorkerStatus::Pending => "pending",
        WorkerStatus::Starting => "starting",
        WorkerStatus::Idle => "idle",
        WorkerStatus::Running => "running",
        WorkerStatus::Stopped => "stopped",
        WorkerStatus::Error => "error",
    }
}

impl WorkerView {
    /// The same without what only an administrator may know: where the worker is.
    pub(crate) fn without_address(mut self) -> Self {
        let endpoint = self.endpoint.take().unwrap_or_default();
        self.port = None;
        let places = places(&endpoint);
        self.reason = self.reason.map(|reason| {
            places.iter().fold(reason, |reason, place| reason.replace(place.as_str(), "the worker"))
        });
        self
    }

    pub(crate) fn new(worker: Worker, now: Timestamp) -> Self {
        let (status, reports) = status_of(&worker, now);
        let report = worker.report;
        let silent = !reports && report.health != Health::Draining;
        let since = worker.last_active_at;
        let reason = if silent {
            Some(format!("the process that drives it has not reported since {since}"))
        } else {
            report.reason
        };
        let port = Url::parse(&worker.spec.endpoint).ok().and_then(|url| url.port_or_known_default());
        Self {
            pod_name: worker.spec.name.unwrap_or_else(|| worker.spec.id.to_string()),
            status: text(status),
            endpoint: Some(worker.spec.endpoint),
            port: Some(port.unwrap_or(0)),
            current_task_id: report.current_task.map(|task| task.to_string()),
            created_at: worker.created_at,
            last_active_at: since,
            health_status: reports && report.health.is_usable(),
            health: if silent { "silent" } else { report.health.as_str() },
            reason,
            labels: worker.spec.labels.into_iter().collect(),
            version: report.comfyui_version,
            device: report.device,
            vram_free: report.vram.map(|(free, _)| free),
            vram_total: report.vram.map(|(_, total)| total),
            id: worker.spec.id.into(),
        }
    }
}
