//! Real processes of the real program, for tests.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests may fail the test")]
#![allow(dead_code, reason = "every test file uses its own part of it")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use remuda_testbed::process::Program;
use remuda_testbed::wait;
use serde_json::Value;

/// Generous, for machines that do a lot besides.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// A process that says in its first line, as JSON, where it answers.
pub(crate) struct Running {
    pub(crate) program: Program,
    pub(crate) first: Value,
}

impl Running {
    pub(crate) async fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[]).await
    }

    pub(crate) async fn start_with(args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut program = Program::start(env!("CARGO_BIN_EXE_remuda"), args, env.iter().copied())
            .expect("the program starts");
        let line = program.wait_line("{\"", PATIENCE).await.expect("the first line");
        Self { program, first: serde_json::from_str(&line).expect("the first line is JSON") }
    }

    /// A simulated ComfyUI whose steps take this long.
    pub(crate) async fn sim(step_ms: u32) -> Self {
        let step = step_ms.to_string();
        Self::start(&["sim", "--listen", "127.0.0.1:0", "--json", "--step-ms", &step, "--model-load-ms", "1"])
            .await
    }

    pub(crate) async fn serve(data: &Path, more: &[&str]) -> Self {
        let data = data.to_str().expect("a path that is text");
        let mut args = vec!["serve", "--json", "--listen", "127.0.0.1:0", "--data", data];
        args.extend(more);
        Self::start(&args).await
    }

    pub(crate) fn url(&self) -> &str {
        self.first["url"].as_str().expect("an address")
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        get(&format!("{}{path}", self.url()), None).await
    }

    /// Holds the next prompt that this simulator begins at its first node, until it is released or the simulator restarts.
    pub(crate) async fn hold(&self) {
        let fault = r#"{"kind": "stuck_node", "times": 1}"#;
        let (status, answer) = post(&format!("{}/sim/faults", self.url()), None, fault).await;
        assert_eq!(status, 200, "{answer}");
    }

    /// Lets go of what is held, and takes back all other faults.
    pub(crate) async fn release(&self) {
        let removed = reqwest::Client::new().delete(format!("{}/sim/faults", self.url())).send().await;
        removed.expect("an answer").error_for_status().expect("no faults");
    }

    /// Waits until this simulator works on a prompt.
    pub(crate) async fn rendering(&self) {
        wait::until("a prompt to run", PATIENCE, async || {
            let queue = self.get("/queue").await;
            queue["queue_running"].as_array().is_some_and(|list| !list.is_empty()).then_some(())
        })
        .await
        .expect("a prompt that runs");
    }

    /// How often each prompt was executed, by the simulator's own count.
    pub(crate) async fn executions(&self) -> u64 {
        self.get("/sim/stats").await["executions_total"].as_u64().expect("a count")
    }
}

pub(crate) async fn get(url: &str, key: Option<&str>) -> Value {
    let mut request = reqwest::Client::new().get(url);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let bytes = request.send().await.expect("an answer").bytes().await.expect("a body");
    serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into()))
}

/// The body of the seed's own curl example.
pub(crate) const SEED_EXAMPLE: &str = include_str!("seed_task.json");

/// Submits a body; the answer's status and JSON.
pub(crate) async fn post(url: &str, key: Option<&str>, body: impl Into<String>) -> (u16, Value) {
    let mut request =
        reqwest::Client::new().post(url).header("content-type", "application/json").body(body.into());
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    let bytes = answer.bytes().await.expect("a body");
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Waits until a task has this status.
pub(crate) async fn status(base: &str, key: Option<&str>, id: &str, wanted: &str) -> Value {
    let url = format!("{base}/api/v1/tasks/{id}");
    wait::until(format!("task {id} to be {wanted}"), PATIENCE, async || {
        let task = get(&url, key).await;
        if task["status"] == wanted {
            Ok(task)
        } else {
            Err(task["status"].to_string() + &task["error"].to_string())
        }
    })
    .await
    .expect("the task gets there")
}

/// Runs a command to its end.
pub(crate) fn remuda(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remuda")).args(args).output().expect("the program runs")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}
