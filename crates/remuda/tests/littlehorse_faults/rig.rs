//! What these tests need beside the stage.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use littlehorse_double::{Method, What};
use remuda_testbed::process::Program;
use serde_json::Value;

use crate::stage::{Stage, until};
use crate::support::{get, post};

/// Breaks a simulated ComfyUI.
pub(crate) async fn fault(url: &str, fault: Value) {
    let (code, answer) = post(&format!("{url}/sim/faults"), None, fault.to_string()).await;
    assert_eq!(code, 200, "{answer}");
}

/// Waits until ComfyUI has nothing to do.
pub(crate) async fn idle(url: &str) {
    let queue = format!("{url}/queue");
    until("ComfyUI to be done", async || {
        let queue = get(&queue, None).await;
        let empty = |name: &str| queue[name].as_array().is_some_and(Vec::is_empty);
        empty("queue_running") && empty("queue_pending")
    })
    .await;
}

/// The files of a worker's journal.
pub(crate) fn journal(data: &Path) -> Vec<PathBuf> {
    let folder = data.join("littlehorse/journal");
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    files.map(|file| file.unwrap().path()).collect()
}

/// Waits until the journal of a worker has nothing in it: every end was heard.
pub(crate) async fn all_heard(data: &Path) {
    until("the journal to be empty", async || journal(data).is_empty()).await;
}

/// What a container would set.
pub(crate) fn env(stage: &Stage) -> Vec<(String, String)> {
    let port = stage.double.port(0).to_string();
    [
        ("LHC_API_HOST", "127.0.0.1"),
        ("LHC_API_PORT", port.as_str()),
        ("COMFYUI_BASE_URL", stage.sim.url()),
        ("COMFYUI_OUTPUT_DIR", stage.output().as_str()),
        ("COMFYUI_HEALTH_CHECK_INTERVAL_SEC", "0.1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

fn args(data: &Path) -> [&str; 6] {
    ["worker", "--source", "littlehorse", "--json", "--data", data.to_str().unwrap()]
}

/// A worker that does not get as far as to say where it serves.
pub(crate) fn begin(stage: &Stage) -> Program {
    Program::start(env!("CARGO_BIN_EXE_remuda"), args(stage.dir.path()), env(stage)).unwrap()
}

/// The same, with more variables.
pub(crate) fn begin_with(stage: &Stage, more: impl IntoIterator<Item = (String, String)>) -> Program {
    let env = env(stage).into_iter().chain(more);
    Program::start(env!("CARGO_BIN_EXE_remuda"), args(stage.dir.path()), env).unwrap()
}

/// A worker that is expected to give up.
pub(crate) async fn gives_up(data: &Path, env: Vec<(String, String)>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remuda"));
    command.args(args(data)).envs(env);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// When the method was called, in milliseconds.
pub(crate) fn calls(stage: &Stage, method: Method) -> Vec<u128> {
    let events = stage.double.journal().events().into_iter();
    events
        .filter(|event| event.method == method && matches!(event.what, What::Call { .. }))
        .map(|event| event.at.as_millis())
        .collect()
}
