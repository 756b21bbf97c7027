//! A task of a real server, simulated ComfyUIs, and workers between them.

use crate::support::{PATIENCE, Running, get};
use remuda_testbed::littlehorse::{Input, LittleHorseServer, Run, RunStatus, Workflow, Workflows};
use remuda_testbed::wait;
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

/// A TaskDef that no other test uses, and one ComfyUI.
pub(crate) struct Stage {
    pub(crate) workflow: Workflow,
    pub(crate) workflows: Workflows,
    pub(crate) sim: Running,
    /// For a worker's data.
    pub(crate) dir: TempDir,
    port: String,
}

impl Stage {
    pub(crate) async fn new(server: &LittleHorseServer, task: &str) -> Stage {
        Stage {
            workflow: Workflow::of(task, Input::Json),
            workflows: server.workflows(),
            sim: Running::sim(1).await,
            dir: TempDir::new().unwrap(),
            port: server.port().to_string(),
        }
    }

    /// A worker of this stage's ComfyUI, which has registered the TaskDef.
    pub(crate) async fn worker(&self) -> Running {
        self.worker_with(self.dir.path(), &self.sim, &[]).await
    }

    pub(crate) async fn worker_with(&self, data: &Path, sim: &Running, more: &[(&str, &str)]) -> Running {
        let data = data.to_str().unwrap();
        let output = output_folder(sim);
        let variables = self.variables(sim, &output);
        let args = ["worker", "--source", "littlehorse", "--json", "--data", data];
        Running::start_with(&args, &[&variables[..], more].concat()).await
    }

    /// How a worker is set up, as in a container.
    pub(crate) fn variables<'a>(&'a self, sim: &'a Running, output: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            ("LHC_API_HOST", "127.0.0.1"),
            ("LHC_API_PORT", &self.port),
            ("LHW_TASK_NAME", &self.workflow.task),
            ("COMFYUI_BASE_URL", sim.url()),
            ("COMFYUI_OUTPUT_DIR", output),
            ("COMFYUI_HEALTH_CHECK_INTERVAL_SEC", "0.1"),
        ]
    }

    /// Makes the workflow and starts a run of it.
    pub(crate) async fn run(&self, id: &str, input: impl ToString) {
        self.workflows.put(&self.workflow).await.unwrap();
        self.workflows.run(&self.workflow, id, &input.to_string()).await.unwrap();
    }

    /// The end of a run.
    pub(crate) async fn ended(&self, id: &str) -> Run {
        self.workflows.ended(id, PATIENCE).await.unwrap()
    }

    /// Waits until ComfyUI works on something.
    pub(crate) async fn renders(&self) {
        let busy = async || (running(&self.sim).await > 0).then_some(());
        wait::until("a prompt to run", PATIENCE, busy).await.unwrap();
    }

    /// Waits until ComfyUI works on nothing.
    pub(crate) async fn is_idle(&self) {
        let idle = async || (running(&self.sim).await == 0).then_some(());
        wait::until("no prompt to run", PATIENCE, idle).await.unwrap();
    }
}

/// The folder into which a simulated ComfyUI writes.
pub(crate) fn output_folder(sim: &Running) -> String {
    format!("{}/output", sim.first["dir"].as_str().unwrap())
}

/// How many prompts run or wait there.
pub(crate) async fn running(sim: &Running) -> usize {
    let queue = get(&format!("{}/queue", sim.url()), None).await;
    ["queue_running", "queue_pending"].iter().map(|list| queue[list].as_array().unwrap().len()).sum()
}

/// A graph that renders for this long and saves a picture. Its steps are short: only between them it can be stopped.
pub(crate) fn graph(seed: u64, millis: u64) -> Value {
    let steps = (millis / 100).max(10);
    json!({
        "1": {"class_type": "RigProgress", "inputs":
            {"steps": steps, "step_ms": millis / steps, "preview": "none", "preview_size": 64, "seed": seed}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "fox/a"}},
    })
}

/// What a run that went well has returned.
pub(crate) fn output(run: &Run) -> Value {
    assert_eq!(run.status, RunStatus::Completed, "{run:?}");
    serde_json::from_str(run.output().unwrap()).unwrap()
}

/// Name and content of what a workflow sees of a failure.
pub(crate) fn failure(run: &Run) -> (&str, Value) {
    let failure = run.failure.as_ref().unwrap_or_else(|| panic!("no failure: {run:?}"));
    let content = failure.content.as_deref().unwrap_or("null");
    (&failure.name, serde_json::from_str(content).unwrap())
}
