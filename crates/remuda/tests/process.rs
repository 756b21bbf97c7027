//! The real program when its own work goes wrong: a runtime that does not turn, graphs that bring it down.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use remuda_testbed::process::Program;
use remuda_testbed::wait;
use serde_json::Value;
use support::{PATIENCE, Running, SEED_EXAMPLE, get, post, status};

/// A data directory and a fault that can be switched on and off.
struct Rig {
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn data(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn fault_file(&self) -> PathBuf {
        self.dir.path().join("fault")
    }

    fn fault(&self, what: &str) {
        // Whole or not at all: it is read all the time.
        let fresh = self.dir.path().join("fault.new");
        std::fs::write(&fresh, what).unwrap();
        std::fs::rename(fresh, self.fault_file()).unwrap();
    }

    fn mend(&self) {
        std::fs::remove_file(self.fault_file()).unwrap();
    }

    /// Starts a program that can be broken.
    fn program(&self, args: &[&str]) -> Program {
        let fault = self.fault_file().to_str().unwrap().to_owned();
        let env = [("REMUDA_TEST_FAULT", fault.as_str()), ("REMUDA_WATCHDOG", "1s")];
        Program::start(env!("CARGO_BIN_EXE_remuda"), args, env).expect("it starts")
    }

    async fn running(&self, args: &[&str]) -> Running {
        let mut program = self.program(args);
        let line = program.wait_line("{\"", PATIENCE).await.expect("the first line");
        Running { program, first: serde_json::from_str(&line).unwrap() }
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A fresh connection each time, as a probe has.
async fn live(base: &str) -> (u16, Value) {
    let client = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
    let answer = client.get(format!("{base}/live")).send().await.expect("/live is always answered");
    let status = answer.status().as_u16();
    (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap())
}

async fn until_live_says(base: &str, wanted: u16) -> Value {
    wait::until(format!("/live to say {wanted}"), PATIENCE, async || {
        let (status, body) = live(base).await;
        if status == wanted { Ok(body) } else { Err(status.to_string()) }
    })
    .await
    .expect("it gets there")
}

fn said(program: &Program, words: &str) -> bool {
    program.output().iter().any(|line| line.contains(words))
}

async fn until_said(program: &Program, words: &str) {
    wait::until(format!("the log to say {words:?}"), PATIENCE, async || said(program, words).then_some(()))
        .await
        .expect("it says so");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_is_answered_while_nothing_else_turns() {
    let rig = Rig::new();
    let data = text(&rig.data("data"));
    let server = rig.running(&["serve", "--json", "--listen", "127.0.0.1:0", "--data", &data]).await;
    let base = server.url().to_owned();
    assert_eq!(live(&base).await, (200, serde_json::json!({"status": "alive"})));

    rig.fault("hold");
    let body = until_live_says(&base, 503).await;
    assert_eq!(body["code"], "still");
    until_said(&server.program, "the process does not turn").await;
    until_said(&server.program, "a test that holds everything").await;
    // What else is asked meanwhile is kept for the runtime.
    let asked = tokio::spawn({
        let url = format!("{base}/api/v1/tasks");
        async move { get(&url, None).await }
    });
    assert_eq!(live(&base).await.0, 503);
    assert!(!asked.is_finished());
    rig.mend();
    assert!(asked.await.unwrap()["tasks"].is_array());
    until_live_says(&base, 200).await;
    until_said(&server.program, "turns again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_does_not_turn_still_stops() {
    let rig = Rig::new();
    let data = text(&rig.data("data"));
    let args = ["serve", "--json", "--listen", "127.0.0.1:0", "--data", &data, "--drain", "1s"];
    let mut server = rig.running(&args).await;
    rig.fault("hold");
    until_live_says(server.url(), 503).await;
    server.program.term().unwrap();
    let status = server.program.wait_exit(PATIENCE).await.expect("it ends");
    assert_eq!(status.code(), Some(1), "{status:?}");
    assert!(said(&server.program, "was told to stop and does not"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_stopped_has_done_nothing_wrong() {
    let rig = Rig::new();
    let data = text(&rig.data("data"));
    let mut server = rig.running(&["serve", "--json", "--listen", "127.0.0.1:0", "--data", &data]).await;
    let base = server.url().to_owned();
    for _ in 0..2 {
        server.program.stop().unwrap();
        // Three times as long as it may stand still by itself.
        tokio::time::sleep(Duration::from_secs(3)).await;
        server.program.cont().unwrap();
        assert_eq!(live(&base).await.0, 200);
    }
    assert!(!said(&server.program, "does not turn"));
}

/// The task of which a process died before it could answer.
async fn only_task(base: &str) -> Value {
    wait::until("the task to be listed", PATIENCE, async || {
        get(&format!("{base}/api/v1/tasks"), None).await["tasks"].get(0).cloned()
    })
    .await
    .expect("it was taken in")
}

fn check_set_aside(task: &Value, kind: &str) {
    assert_eq!(task["error_class"], "harmful", "{task}");
    let harm = task["error_details"]["harm"].as_array().expect("what is known");
    assert_eq!(harm.iter().map(|harm| harm["kind"].as_str().unwrap()).collect::<Vec<_>>(), [kind; 2]);
    assert!(harm.iter().all(|harm| harm["work"].as_str().unwrap().ends_with("a graph")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_that_brings_a_server_down_twice_is_set_aside() {
    let rig = Rig::new();
    let sim = Running::sim(1).await;
    let data = text(&rig.data("data"));
    let args = ["serve", "--json", "--listen", "127.0.0.1:0", "--data", &data, "--comfyui", sim.url()];
    let mut first = rig.running(&args).await;
    rig.fault("die editing a graph");
    let url = format!("{}/api/v1/tasks", first.url());
    // The answer may die with the process.
    let _answer = reqwest::Client::new()
        .post(&url)
        .header("content-type", "application/json")
        .body(SEED_EXAMPLE)
        .send()
        .await;
    first.program.wait_exit(PATIENCE).await.expect("it dies");
    // It takes the task up again, and dies again.
    let mut second = rig.program(&args);
    second.wait_exit(PATIENCE).await.expect("it dies again");
    assert!(said(&second, "died while it worked on the graph of a task"), "{:#?}", second.output());
    // And starts, with the cause still there.
    let third = rig.running(&args).await;
    let id = only_task(third.url()).await["id"].as_str().unwrap().to_owned();
    let task = status(third.url(), None, &id, "failed").await;
    check_set_aside(&task, "death");
    let (code, answer) = post(&format!("{}/api/v1/tasks/{id}/retry", third.url()), None, "").await;
    assert_eq!((code, &answer["code"]), (409, &"harmful".into()));
    rig.mend();
    let (code, answer) = post(&format!("{}/api/v1/tasks", third.url()), None, SEED_EXAMPLE).await;
    assert_eq!(code, 201, "{answer}");
    status(third.url(), None, answer["id"].as_str().unwrap(), "completed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_that_brings_a_sidecar_down_twice_is_set_aside() {
    let rig = Rig::new();
    let sim = Running::sim(1).await;
    let server = Running::serve(&rig.data("server"), &[]).await;
    let data = text(&rig.data("worker"));
    let args = ["worker", "--json", "--server", server.url(), "--data", &data, "--comfyui", sim.url()];
    rig.fault("die editing a graph");
    let (code, answer) = post(&format!("{}/api/v1/tasks", server.url()), None, SEED_EXAMPLE).await;
    assert_eq!(code, 201, "{answer}");
    let id = answer["id"].as_str().unwrap();
    for _ in 0..2 {
        rig.program(&args).wait_exit(PATIENCE).await.expect("it dies");
    }
    let _third = rig.running(&args).await;
    let task = status(server.url(), None, id, "failed").await;
    check_set_aside(&task, "death");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_that_stalls_twice_is_set_aside_and_holds_nobody() {
    let rig = Rig::new();
    let sim = Running::sim(1).await;
    let data = text(&rig.data("data"));
    let args = ["serve", "--json", "--listen", "127.0.0.1:0", "--data", &data, "--comfyui", sim.url()];
    let server = rig.running(&args).await;
    rig.fault("stall reading a graph");
    // Large enough for a thread of its own.
    let mut body: Value = serde_json::from_str(SEED_EXAMPLE).unwrap();
    let graph = ["payload", "workflow", "prompt"].into_iter().find(|name| body[*name].is_object()).unwrap();
    let nodes = body[graph].as_object_mut().unwrap();
    let (_, node) = nodes.iter_mut().find(|(_, node)| node["class_type"].is_string()).expect("a node");
    node["_meta"] = serde_json::json!({"title": "x".repeat(64 << 10)});
    let (code, answer) = post(&format!("{}/api/v1/tasks", server.url()), None, body.to_string()).await;
    assert_eq!(code, 201, "{answer}");
    let task = status(server.url(), None, answer["id"].as_str().unwrap(), "failed").await;
    check_set_aside(&task, "stall");
    assert_eq!(live(server.url()).await.0, 200, "the rest turns");
    assert!(!said(&server.program, "the process does not turn"));
    rig.mend();
    // The same graph, with the cause gone, goes the whole way beside the runtime.
    let (_, answer) = post(&format!("{}/api/v1/tasks", server.url()), None, body.to_string()).await;
    status(server.url(), None, answer["id"].as_str().unwrap(), "completed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_in_mid_render_blames_nobody() {
    let rig = Rig::new();
    let sim = Running::sim(1).await;
    let data = text(&rig.data("data"));
    let args = ["serve", "--json", "--listen", "127.0.0.1:0", "--data", &data, "--comfyui", sim.url()];
    sim.hold().await;
    let mut server = rig.running(&args).await;
    let (_, answer) = post(&format!("{}/api/v1/tasks", server.url()), None, SEED_EXAMPLE).await;
    let id = answer["id"].as_str().unwrap().to_owned();
    sim.rendering().await;
    for _ in 0..3 {
        server.program.kill_9().unwrap();
        server.program.wait_exit(PATIENCE).await.expect("it dies");
        server = rig.running(&args).await;
        assert!(!said(&server.program, "died while it worked"), "{:#?}", server.program.output());
    }
    sim.release().await;
    status(server.url(), None, &id, "completed").await;
}
