//! The ComfyUIs that this process drives: those it is told of, and the simulated ones that it started.

use std::collections::BTreeSet;

use anyhow::Context as _;
use comfyui::{Client, Limits};
use remuda_core::{WorkerId, WorkerSpec};
use remuda_runner::{WorkerConfig, host_id, worker_id_for};
use url::Url;

use super::simulators::Simulators;
use crate::config::{ComfyUi, Settings};

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
