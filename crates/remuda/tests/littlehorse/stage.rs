//! A double of a LittleHorse server, simulated ComfyUIs, and the worker between them.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::path::Path;
use std::time::Duration;

use littlehorse_double::proto::task_attempt::Result as Ended;
use littlehorse_double::proto::variable_value::Value as Kind;
use littlehorse_double::proto::{TaskAttempt, TaskRun, TaskStatus, VarNameAndVal, VariableValue};
use littlehorse_double::{Double, NewRun, Options, Run};
use remuda_testbed::wait;
use serde_json::{Value, json};

use crate::support::{PATIENCE, Running};

/// A server, a ComfyUI and a folder for the worker.
pub(crate) struct Stage {
    pub(crate) double: Double,
    pub(crate) sim: Running,
    pub(crate) dir: tempfile::TempDir,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let double = Double::start(options).await.unwrap();
        Self { double, sim: Running::sim(1).await, dir: tempfile::tempdir().unwrap() }
    }

    /// The folder into which the simulated ComfyUI writes.
    pub(crate) fn output(&self) -> String {
        format!("{}/output", self.sim.first["dir"].as_str().unwrap())
    }

    /// A worker that is set up by variables alone, as in a container.
    pub(crate) async fn worker(&self) -> Running {
        self.worker_with(&[], &[]).await
    }

    pub(crate) async fn worker_with(&self, args: &[&str], env: &[(&str, &str)]) -> Running {
        let port = self.double.port(0).to_string();
        let output = self.output();
        let mut all = vec![
            ("LHC_API_HOST", "127.0.0.1"),
            ("LHC_API_PORT", port.as_str()),
            ("COMFYUI_BASE_URL", self.sim.url()),
            ("COMFYUI_OUTPUT_DIR", output.as_str()),
            ("COMFYUI_HEALTH_CHECK_INTERVAL_SEC", "0.1"),
        ];
        all.retain(|(name, _)| env.iter().all(|(other, _)| other != name));
        all.extend(env);
        start(self.dir.path(), args, &all).await
    }

    /// Waits until ComfyUI works on something.
    pub(crate) async fn rendering(&self) {
        self.sim.rendering().await;
    }
}

/// The worker as a process of its own.
pub(crate) async fn start(data: &Path, args: &[&str], env: &[(&str, &str)]) -> Running {
    let data = data.to_str().unwrap();
    let mut all = vec!["worker", "--source", "littlehorse", "--json", "--data", data];
    all.extend(args);
    Running::start_with(&all, env).await
}

/// A graph that renders for at least this long and saves a picture.
pub(crate) fn graph(seed: u64, millis: u64) -> Value {
    json!({
        "1": {"class_type": "RigProgress", "inputs":
            {"steps": 10, "step_ms": millis / 10, "preview": "none", "preview_size": 64, "seed": seed}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "fox/a"}},
    })
}

/// A graph that renders for longer than any test, and can be stopped at any time.
pub(crate) fn endless(seed: u64) -> Value {
    let mut graph = graph(seed, 0);
    graph["1"]["inputs"]["steps"] = json!(20_000);
    graph["1"]["inputs"]["step_ms"] = json!(100);
    graph
}

/// A task whose workflow is text.
pub(crate) fn text_run(id: &str, workflow: &str) -> NewRun {
    let value = VariableValue { value: Some(Kind::Str(workflow.to_owned())) };
    NewRun::new(
        id,
        vec![VarNameAndVal { var_name: "workflow".to_owned(), value: Some(value), masked: false }],
    )
}

/// Waits for the end of a task.
pub(crate) async fn ended(run: &Run) -> TaskRun {
    tokio::time::timeout(PATIENCE, run.ended()).await.expect("the task ends")
}

/// The last attempt of a task that is over.
pub(crate) fn last(run: &TaskRun) -> &TaskAttempt {
    run.attempts.last().expect("an attempt")
}

/// The output of a task that ended well.
pub(crate) fn output(run: &TaskRun) -> Value {
    assert_eq!(run.status(), TaskStatus::TaskSuccess, "{run:?}");
    match &last(run).result {
        Some(Ended::Output(VariableValue { value: Some(Kind::JsonObj(text)) })) => {
            serde_json::from_str(text).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// Name, message and content of the exception that ended a task.
pub(crate) fn exception(run: &TaskRun) -> (String, String, Value) {
    assert_eq!(run.status(), TaskStatus::TaskException, "{run:?}");
    match &last(run).result {
        Some(Ended::Exception(exception)) => {
            let content = match exception.content.as_ref().and_then(|content| content.value.as_ref()) {
                Some(Kind::JsonObj(text)) => serde_json::from_str(text).unwrap(),
                other => panic!("{other:?}"),
            };
            (exception.name.clone(), exception.message.clone(), content)
        }
        other => panic!("{other:?}"),
    }
}

/// The message of the error that ended an attempt.
pub(crate) fn error(attempt: &TaskAttempt) -> String {
    match &attempt.result {
        Some(Ended::Error(error)) => error.message.clone(),
        other => panic!("{other:?}"),
    }
}

/// What people read beside an attempt.
pub(crate) fn log(attempt: &TaskAttempt) -> String {
    match attempt.log_output.as_ref().and_then(|log| log.value.as_ref()) {
        Some(Kind::Str(text)) => text.clone(),
        other => panic!("{other:?}"),
    }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, is: impl AsyncFn() -> bool) {
    wait::until(what.to_owned(), PATIENCE, async || is().await.then_some(())).await.unwrap();
}

/// Without waiting for anything: shorter than a drain, which takes 25 s.
pub(crate) const SOON: Duration = Duration::from_secs(20);
