//! Simulated ComfyUIs inside this process, for `--sim N` and the demo.

use std::time::Duration;

use anyhow::Context as _;
use comfyui_sim::{SimConfig, Simulator};
use remuda_core::WorkerId;
use remuda_runner::{host_id, worker_id_for};

/// What else somebody without a ComfyUI could do, for the end of a message.
pub(crate) const OR_SIMULATE: &str = ", or --sim 1 to try it without a GPU";

/// Those that run.
#[derive(Debug, Default)]
pub(crate) struct Simulators(Vec<Simulator>);

impl Simulators {
    /// Starts this many, fast enough to look at.
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
