//! The ComfyUIs that this process drives: those it is told of, and simulated ones that it starts.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use comfyui::{Client, Limits};
use comfyui_sim::{SimConfig, Simulator};
use remuda_core::{WorkerId, WorkerSpec};
use remuda_runner::{WorkerConfig, host_id, worker_id_for};
use url::Url;

use crate::config::{ComfyUi, Settings};

/// Simulated ComfyUIs inside this process.
#[derive(Debug, Default)]
pub(crate) struct Simulators(Vec<Simulator>);

impl Simulators {
    /// Starts so many, fast enough to look at.
    pub(crate) async fn start(count: usize) -> anyhow::Result<Self> {
        let mut simulators = Vec::with_capacity(count);
        for _ in 0..count {
            let config = SimConfig {
                step: Duration::from_millis(25),
                model_load: Duration::from_millis(250),
                ..SimConfig::default()
            };
            simulators.push(Simulator::start(config).await.context("a simulated ComfyUI did not start")?);
        }
        Ok(Self(simulators))
    }

    /// Where they answer.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.0.iter().map(Simulator::url).collect()
    }

    /// What they are called as workers.
    pub(crate) fn workers(&self) -> Vec<WorkerId> {
        let host = host_id();
        self.urls().iter().filter_map(|url| worker_id_for(url, &host).ok()).collect()
    }

    /// Stops them.
    pub(crate) async fn stop(self) {
        for simulator in self.0 {
            simulator.shutdown().await;
        }
    }
}

/// Every worker of the settings, and of the simulators. `name` replaces the usual id when there is one worker.
pub(crate) fn worker_configs(
    settings: &Settings,
    simulators: &Simulators,
    name: Option<&str>,
) -> anyhow::Result<Vec<WorkerConfig>> {
    let mut configs = Vec::new();
    let limits = comfyui_limits(settings);
    for comfyui in &settings.workers.comfyui {
        configs.push(config(comfyui, limits)?);
    }
    for url in simulators.urls() {
        let url: Url = url.parse().context("a simulated ComfyUI has no address")?;
        configs.push(config(&ComfyUi { url, labels: vec!["simulated".to_owned()] }, limits)?);
    }
    for config in &mut configs {
        config.session.outputs = settings.graph.results();
    }
    if let Some(name) = name {
        anyhow::ensure!(
            configs.len() == 1,
            "--worker-id names one worker, and there are {}: give exactly one --comfyui",
            configs.len()
        );
        configs[0].spec.id = WorkerId::new(name)?;
    }
    Ok(configs)
}

/// How much a ComfyUI may send.
pub(crate) fn comfyui_limits(settings: &Settings) -> Limits {
    Limits { file: settings.tasks.max_output_size, ..settings.workers.limits }
}

fn config(comfyui: &ComfyUi, limits: Limits) -> anyhow::Result<WorkerConfig> {
    let host = host_id();
    let client = Client::builder(comfyui.url.as_str())
        .limits(limits)
        .build()
        .with_context(|| format!("{comfyui} is not the address of a ComfyUI"))?;
    let spec = WorkerSpec {
        id: worker_id_for(comfyui.url.as_str(), &host)?,
        endpoint: comfyui.url.as_str().trim_end_matches('/').to_owned(),
        name: None,
        labels: comfyui.labels.iter().cloned().collect::<BTreeSet<_>>(),
    };
    Ok(WorkerConfig::new(spec, client))
}
