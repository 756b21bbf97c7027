//! Remuda with two simulated ComfyUIs, one of which will be killed.

use crate::support::{self, PATIENCE, Running};
use remuda_testbed::wait;
use serde_json::Value;
use tempfile::TempDir;

/// The first render of each ComfyUI takes this many times as long, so that there is time to kill it.
const SLOW: &str = "slow_nodes,factor=20,times=1";

/// Two real processes that render, and one that has a queue.
pub(crate) struct Ranch {
    comfyuis: Vec<Running>,
    remuda: Running,
    _data: TempDir,
}

impl Ranch {
    pub(crate) async fn open(more: &[&str]) -> Ranch {
        let data = TempDir::new().expect("a folder");
        let mut comfyuis = Vec::new();
        for _ in 0..2 {
            let args =
                ["sim", "--json", "--listen", "127.0.0.1:0", "--step-ms", "50", "--model-load-ms", "1"];
            comfyuis.push(Running::start(&[&args[..], &["--fault", SLOW]].concat()).await);
        }
        let mut args: Vec<&str> = comfyuis.iter().flat_map(|comfyui| ["--comfyui", comfyui.url()]).collect();
        args.extend(more);
        let remuda = Running::serve(data.path(), &args).await;
        Ranch { comfyuis, remuda, _data: data }
    }

    pub(crate) fn url(&self) -> &str {
        self.remuda.url()
    }

    /// Kills the ComfyUI that renders and returns the other, which from now on renders at full speed.
    pub(crate) async fn kill_the_busy_one(&mut self) -> &Running {
        let busy = wait::until("a ComfyUI that renders", PATIENCE, async || {
            for (index, comfyui) in self.comfyuis.iter().enumerate() {
                let queue = comfyui.get("/queue").await;
                if queue["queue_running"].as_array().is_some_and(|running| !running.is_empty()) {
                    return Some(index);
                }
            }
            None
        });
        let busy = busy.await.expect("a prompt that runs");
        let other = 1 - busy;
        let faults = format!("{}/sim/faults", self.comfyuis[other].url());
        reqwest::Client::new().delete(faults).send().await.expect("an answer");
        self.comfyuis[busy].program.kill_9().expect("it can be killed");
        &self.comfyuis[other]
    }

    /// The entries of ComfyUI's history.
    pub(crate) async fn history(&self) -> Vec<Value> {
        let history = self.remuda.get("/history").await;
        history.as_object().expect("an object").values().cloned().collect()
    }

    /// What ComfyUI's newer question after all jobs answers.
    pub(crate) async fn jobs(&self) -> Vec<Value> {
        let jobs = support::get(&format!("{}/api/jobs", self.url()), None).await;
        jobs["jobs"].as_array().expect("a list").clone()
    }
}
