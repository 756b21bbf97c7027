//! The commands as people and scripts use them: output, JSON, exit codes, errors with a next step.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "clippy does not see that the helpers are part of tests")]

mod support;

use std::path::Path;

use remuda_testbed::process::Program;
use support::{PATIENCE, Running, remuda, text};

const WORKFLOW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/workflows/text-to-image.json");

#[tokio::test]
async fn a_workflow_goes_in_and_its_files_come_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::serve(&dir.path().join("data"), &["--sim", "1"]).await;
    let url = server.url();
    let out = dir.path().join("out");
    let ran = remuda(&[
        "run",
        WORKFLOW,
        "--server",
        url,
        "--set",
        "6.text=a fox",
        "--set",
        "3.steps=2",
        "--out",
        out.to_str().unwrap(),
    ]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let file = text(&ran.stdout);
    assert!(Path::new(&file).starts_with(&out), "{file}");
    assert!(std::fs::read(&file).unwrap().starts_with(b"\x89PNG"));

    let submitted = remuda(&["submit", WORKFLOW, "--server", url, "--set", "3.steps=2", "--priority", "9"]);
    let id = text(&submitted.stdout);
    let watched = remuda(&["watch", &id, "--server", url, "--json"]);
    assert!(watched.status.success(), "{}", text(&watched.stderr));
    let task: serde_json::Value = serde_json::from_slice(&watched.stdout).unwrap();
    assert_eq!((&task["status"], &task["priority"]), (&"completed".into(), &9.into()));

    let list = remuda(&["list", "--server", url]);
    assert!(text(&list.stdout).lines().nth(1).unwrap().contains(&id), "newest first: {}", text(&list.stdout));
    let shown = remuda(&["status", &id, "--server", url]);
    assert!(text(&shown.stdout).contains("completed"), "{}", text(&shown.stdout));
    let workers = remuda(&["workers", "--server", url]);
    assert!(text(&workers.stdout).contains("simulated"), "{}", text(&workers.stdout));

    // Too late, and no such task: exit code 4.
    let cancelled = remuda(&["cancel", &id, "--server", url]);
    assert_eq!(cancelled.status.code(), Some(4), "{}", text(&cancelled.stderr));
    let unknown = remuda(&["status", "00000000-0000-0000-0000-000000000000", "--server", url]);
    assert_eq!(unknown.status.code(), Some(4), "{}", text(&unknown.stderr));

    // An ended task is run once more as a new one.
    let again = remuda(&["retry", &id, "--server", url]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    let second = text(&again.stdout);
    assert_ne!(second, id);
    assert!(remuda(&["watch", &second, "--server", url]).status.success());

    // Without a task, everything that happened and happens, a line each.
    let program = env!("CARGO_BIN_EXE_remuda");
    let args = ["watch", "--after", "first", "--json", "--server", url];
    let all = Program::start(program, args, [("RUST_LOG", "off")]).unwrap();
    let event = remuda_testbed::wait::until("the end of the second task", PATIENCE, async || {
        let lines = all.output();
        let events = lines.iter().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        events.into_iter().find(|event| event["task"] == second.as_str() && event["kind"] == "completed")
    });
    let event = event.await.unwrap();
    let from = event["id"].as_str().unwrap().to_owned();
    let mut rest =
        Program::start(program, ["watch", "--after", &from, "--server", url], [("RUST_LOG", "off")]).unwrap();
    let third = text(&remuda(&["submit", WORKFLOW, "--server", url, "--set", "3.steps=2"]).stdout);
    rest.wait_line(&format!("{third}  submitted"), PATIENCE).await.unwrap();
    rest.wait_line(&format!("{third}  completed"), PATIENCE).await.unwrap();
    assert!(rest.output().iter().all(|line| !line.contains(&second)), "{:?}", rest.output());
    let gone = remuda(&["watch", "--after", "9-9-9-9", "--server", url]);
    assert_eq!(gone.status.code(), Some(4), "{}", text(&gone.stderr));
    assert!(text(&gone.stderr).contains("?after="), "{}", text(&gone.stderr));
}

#[tokio::test]
async fn a_scheduled_task_is_cancelled_and_a_bad_graph_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::serve(&dir.path().join("data"), &["--sim", "1"]).await;
    let url = server.url();
    let later =
        remuda(&["submit", WORKFLOW, "--server", url, "--not-before", "2999-01-01T00:00:00Z", "--json"]);
    let task: serde_json::Value = serde_json::from_slice(&later.stdout).unwrap();
    assert_eq!((&task["status"], &task["reason"]), (&"pending".into(), &"scheduled".into()));
    let id = task["id"].as_str().unwrap();
    assert!(remuda(&["cancel", id, "--server", url]).status.success());
    assert_eq!(remuda(&["watch", id, "--server", url]).status.code(), Some(5));

    // What no worker has is refused when the workers are known.
    let known = remuda_testbed::wait::until("the worker to be known", PATIENCE, async || {
        let workers = server.get("/api/v1/workers").await;
        if workers["workers"][0]["health"] == "healthy" { Ok(()) } else { Err(workers.to_string()) }
    });
    known.await.unwrap();
    let bad = dir.path().join("bad.json");
    std::fs::write(&bad, r#"{"1":{"class_type":"NoSuchNode","inputs":{}}}"#).unwrap();
    let refused = remuda(&["submit", bad.to_str().unwrap(), "--server", url]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("NoSuchNode"), "{}", text(&refused.stderr));
}

#[test]
fn without_a_server_there_is_a_next_step() {
    let nobody = remuda(&["list", "--server", "http://127.0.0.1:9"]);
    assert_eq!(nobody.status.code(), Some(3));
    assert!(text(&nobody.stderr).contains("remuda serve"), "{}", text(&nobody.stderr));
}

#[tokio::test]
async fn a_store_and_a_data_directory_have_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let _server = Running::serve(&data, &[]).await;
    let second = remuda(&["serve", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert!(!second.status.success());
    assert!(
        text(&second.stderr).contains("another Remuda uses the data directory"),
        "{}",
        text(&second.stderr)
    );
    // The same file under another data directory is refused by the store itself.
    let other = dir.path().join("other");
    let store = format!("sqlite:{}", data.join("remuda.db").display());
    let third =
        remuda(&["serve", "--data", other.to_str().unwrap(), "--store", &store, "--listen", "127.0.0.1:0"]);
    assert!(!third.status.success());
    assert!(text(&third.stderr).contains("in use by another process"), "{}", text(&third.stderr));
}

#[test]
fn other_machines_are_not_served_without_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let open = remuda(&["serve", "--data", data.to_str().unwrap(), "--listen", "0.0.0.0:0"]);
    assert!(!open.status.success());
    assert!(text(&open.stderr).contains("remuda keys make"), "{}", text(&open.stderr));
}

#[test]
fn keys_are_made_listed_and_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let made = remuda(&[
        "keys", "make", "--name", "ci", "--tenant", "team-a", "--scope", "admin", "--json", "--data", data,
    ]);
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    assert!(made["key"].as_str().unwrap().starts_with("rmd_"));
    let id = made["record"]["id"].as_str().unwrap();
    let list = text(&remuda(&["keys", "list", "--data", data]).stdout);
    assert!(list.contains("team-a") && list.contains(id) && !list.contains("rmd_"), "{list}");
    assert!(remuda(&["keys", "revoke", id, "--data", data]).status.success());
    let missing = remuda(&["keys", "revoke", "00000000-0000-0000-0000-000000000000", "--data", data]);
    assert!(!missing.status.success());
}

#[test]
fn the_demo_renders_everything() {
    let dir = tempfile::tempdir().unwrap();
    let ran = remuda(&["demo", "--json", "--out", dir.path().to_str().unwrap()]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let tasks = report["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 6);
    for task in tasks {
        let file = task["files"][0].as_str().unwrap();
        assert!(std::fs::metadata(file).unwrap().len() > 1000, "{file}");
    }
}

#[tokio::test]
async fn the_page_is_served_from_its_package_and_a_folder_without_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (data, package) = (dir.path().join("data"), dir.path().join("package"));
    std::fs::create_dir_all(package.join("static")).unwrap();
    let refused =
        remuda(&["serve", "--data", data.to_str().unwrap(), "--frontend", package.to_str().unwrap()]);
    assert!(!refused.status.success());
    let error = text(&refused.stderr);
    assert!(error.contains("index.html") && error.contains("comfyui-frontend-package"), "{error}");
    assert!(!data.exists(), "nothing was made");
    std::fs::write(package.join("static/index.html"), "the page").unwrap();
    let server = Running::serve(&data, &["--frontend", package.to_str().unwrap()]).await;
    let page = reqwest::get(server.url()).await.unwrap();
    assert_eq!(page.text().await.unwrap(), "the page");
}

#[tokio::test]
async fn a_tenant_is_bound_to_the_workers_of_its_pool() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--sim", "1", "--tenant-label", "default=pool=a"];
    let server = Running::serve(&dir.path().join("data"), &args).await;
    let submitted = remuda(&["submit", WORKFLOW, "--server", server.url(), "--json"]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    let task: serde_json::Value = serde_json::from_slice(&submitted.stdout).unwrap();
    let id = task["id"].as_str().unwrap().to_owned();
    let shown = remuda(&["status", &id, "--server", server.url(), "--json"]);
    let task: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(task["status"], "pending", "{task}");
    assert!(task["requires"]["labels"].as_array().unwrap().contains(&"pool=a".into()), "{task}");
    drop(server);

    // The simulated worker has this label.
    let args = ["--sim", "1", "--tenant-label", "default=simulated"];
    let server = Running::serve(&dir.path().join("other"), &args).await;
    let out = dir.path().join("out");
    let ran = remuda(&[
        "run",
        WORKFLOW,
        "--server",
        server.url(),
        "--set",
        "3.steps=2",
        "--out",
        out.to_str().unwrap(),
    ]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
}
