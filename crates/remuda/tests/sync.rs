//! The synchronous handler as the small thing of its own: the program with nothing but a few variables, beside one ComfyUI.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "clippy does not see that the helpers are part of tests")]

mod support;

use std::path::Path;
use std::process::Command;

use remuda_testbed::process::Program;
use remuda_testbed::wait;
use serde_json::{Value, json};
use support::{PATIENCE, Running, get, post, text};

/// `remuda serve` with these variables and no settings beside them.
async fn handler(data: &Path, sim: &str, more: &[(&str, &str)]) -> Running {
    let address = sim.strip_prefix("http://").unwrap();
    let mut env = vec![
        ("COMFYUI_SERVER_ADDRESS", address),
        ("SERVER_PORT", "0"),
        ("LOG_LEVEL", "INFO"),
        ("REMUDA_DATA", data.to_str().unwrap()),
    ];
    env.extend(more);
    let mut program = Program::start(env!("CARGO_BIN_EXE_remuda"), ["serve", "--json"], env).unwrap();
    let line = program.wait_line("{\"url", PATIENCE).await.unwrap();
    let handler = Running { program, first: serde_json::from_str(&line).unwrap() };
    let healthy = wait::until("the handler to be healthy", PATIENCE, async || {
        let health = handler.get("/health").await;
        if health["status"] == "healthy" { Ok(()) } else { Err(health.to_string()) }
    });
    healthy.await.unwrap();
    handler
}

fn long(steps: u32) -> Value {
    json!({
        "1": {"class_type": "RigProgress", "inputs": {"steps": steps, "step_ms": 50, "preview": "none", "preview_size": 32, "seed": 1}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "long"}},
    })
}

async fn at_rest(sim: &Running) {
    let rest = wait::until("ComfyUI to rest", PATIENCE, async || {
        let queue = sim.get("/queue").await;
        let empty = |list: &str| queue[list].as_array().is_some_and(Vec::is_empty);
        if empty("queue_running") && empty("queue_pending") { Ok(()) } else { Err(queue.to_string()) }
    });
    rest.await.unwrap();
}

#[tokio::test]
async fn a_few_variables_make_the_handler_and_it_tells_when_its_comfyui_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("handler.log");
    let sim = Running::sim(1).await;
    let more = [("LOG_OUTPUT", log.to_str().unwrap()), ("DEFAULT_TIMEOUT", "60")];
    let handler = handler(&dir.path().join("data"), sim.url(), &more).await;
    let prompt: Value = serde_json::from_str::<Value>(support::SEED_EXAMPLE).unwrap()["payload"].clone();
    let body = json!({"prompt": prompt, "return_image_base64": true}).to_string();
    let url = format!("{}/prompt_sync", handler.url());
    let (status, answer) = post(&url, None, body).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["status"], &answer["node_errors"]), (&"success".into(), &json!({})), "{answer}");
    assert!(answer["execution_time"].as_f64().is_some_and(|seconds| seconds > 0.0));
    let file = answer["images"].as_object().unwrap().values().next().unwrap()[0].clone();
    assert!(file["data"].as_str().unwrap().starts_with("iVBORw0KGgo"), "a PNG as base64");
    let bytes = reqwest::get(format!("{}{}", handler.url(), file["url"].as_str().unwrap())).await.unwrap();
    assert_eq!(bytes.status(), 200);
    assert_eq!(bytes.bytes().await.unwrap().len() as u64, file["size"].as_u64().unwrap());
    let id = answer["prompt_id"].as_str().unwrap();
    let history = get(&format!("{}/history/{id}", handler.url()), None).await;
    assert_eq!(history[id]["outputs"], answer["outputs"], "{history}");

    let health = handler.get("/health").await;
    for field in ["status", "comfyui_server", "queue_running", "queue_pending", "timestamp"] {
        assert!(!health[field].is_null(), "{field}: {health}");
    }
    assert_eq!((&health["status"], &health["comfyui_server"]), (&"healthy".into(), &"connected".into()));
    drop(sim);
    let gone = wait::until("the health to tell", PATIENCE, async || {
        let health = handler.get("/health").await;
        if health["status"] == "unhealthy" { Ok(health) } else { Err(health.to_string()) }
    });
    assert_eq!(gone.await.unwrap()["comfyui_server"], "disconnected");
    let (status, error) = post(&url, None, json!({"prompt": long(1)}).to_string()).await;
    assert_eq!((status, &error["code"]), (503, &"connection_failed".into()), "{error}");

    let lines = std::fs::read_to_string(&log).unwrap();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(
            line["timestamp"].is_string() && line["level"].is_string() && line["message"].is_string(),
            "{line}"
        );
    }
    assert!(!lines.is_empty());
}

#[tokio::test]
async fn a_handler_that_is_killed_leaves_nothing_running_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Running::sim(1).await;
    let mut first = handler(dir.path(), sim.url(), &[]).await;
    let url = format!("{}/prompt_sync?timeout=15", first.url());
    let asked = tokio::spawn(async move {
        let body = json!({"prompt": long(10_000)}).to_string();
        reqwest::Client::new().post(url).body(body).send().await.is_err()
    });
    sim.rendering().await;
    first.program.kill_9().unwrap();
    drop(first);
    assert!(asked.await.unwrap(), "the connection broke");
    let second = handler(dir.path(), sim.url(), &[]).await;
    at_rest(&sim).await;
    let ended = wait::until("the record to tell", PATIENCE, async || {
        let tasks = second.get("/api/v1/tasks").await;
        let task = tasks["tasks"][0].clone();
        if task["status"] == "failed" { Ok(task) } else { Err(tasks.to_string()) }
    });
    assert_eq!(ended.await.unwrap()["error_class"], "timeout");
    assert_eq!(sim.executions().await, 1);
}

#[test]
fn nobody_is_let_in_from_elsewhere_by_accident() {
    let dir = tempfile::tempdir().unwrap();
    let serve = Command::new(env!("CARGO_BIN_EXE_remuda"))
        .arg("serve")
        .env_clear()
        .envs([("SERVER_HOST", "0.0.0.0"), ("SERVER_PORT", "0"), ("COMFYUI_SERVER_ADDRESS", "127.0.0.1:1")])
        .env("REMUDA_DATA", dir.path())
        .output()
        .unwrap();
    assert!(!serve.status.success());
    let said = text(&serve.stderr);
    assert!(
        said.contains("0.0.0.0:0") && said.contains("remuda keys make") && said.contains("--insecure"),
        "{said}"
    );
}
