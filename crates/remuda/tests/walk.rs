//! The walk of a task, as a client of the task API sees it: submitted, pending, running, completed, result readable.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "clippy does not see that the helpers are part of tests")]

mod support;

use remuda_testbed::postgres;
use support::{PATIENCE, Running, SEED_EXAMPLE, get, post, remuda, status, text};

/// Submits the seed's own example and follows it to its picture.
async fn walk(base: &str, key: Option<&str>, sim: &Running) {
    sim.hold().await;
    let (code, task) = post(&format!("{base}/api/v1/tasks"), key, SEED_EXAMPLE).await;
    assert_eq!(code, 201, "{task}");
    assert_eq!(task["workflow_id"], "text_to_image_v1");
    assert_eq!(task["status"], "pending", "{task}");
    assert!(task["created_at"].is_string());
    let id = task["id"].as_str().unwrap();

    status(base, key, id, "running").await;
    sim.rendering().await;
    sim.release().await;
    let done = status(base, key, id, "completed").await;
    assert_eq!((&done["retry_count"], &done["max_retries"]), (&0.into(), &3.into()));
    assert_eq!(done["payload"]["3"]["inputs"]["seed"], 46_588_125_086_418_u64);
    for moment in ["created_at", "started_at", "completed_at"] {
        assert!(done[moment].is_string(), "{moment}: {done}");
    }
    let file = &done["result"]["files"][0];
    let mut request = reqwest::Client::new().get(format!("{base}{}", file["url"].as_str().unwrap()));
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let picture = request.send().await.unwrap().bytes().await.unwrap();
    assert_eq!(picture.len() as u64, file["size"].as_u64().unwrap());
    assert!(picture.starts_with(b"\x89PNG"));

    // The record stays, and so do its events: one for each change, the last one the end.
    let events = reqwest::Client::new().get(format!("{base}/api/v1/tasks/{id}/events"));
    let events = match key {
        Some(key) => events.bearer_auth(key),
        None => events,
    };
    let events = events.send().await.unwrap().text().await.unwrap();
    assert_eq!(events.matches("event: state").count() as u64, done["version"].as_u64().unwrap(), "{events}");
    assert!(events.contains("\"kind\":\"completed\""), "{events}");
}

#[tokio::test]
async fn on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Running::sim(20).await;
    let server = Running::serve(dir.path(), &["--comfyui", sim.url()]).await;
    walk(server.url(), None, &sim).await;
    assert_eq!(sim.executions().await, 1);
    let metrics = server.get("/api/v1/queue/metrics").await;
    assert_eq!(metrics["completed_tasks"], 1);
    assert_eq!(server.get("/api/v1/workers/metrics").await["total_workers"], 1);
}

#[tokio::test]
async fn on_postgres() {
    let dir = tempfile::tempdir().unwrap();
    let database = postgres::database().await.unwrap();
    let sim = Running::sim(20).await;
    let server = Running::serve(dir.path(), &["--comfyui", sim.url(), "--store", &database]).await;
    walk(server.url(), None, &sim).await;
    assert_eq!(sim.executions().await, 1);
}

#[tokio::test]
async fn with_a_sidecar_that_knows_only_the_address_and_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("server");
    let key = |scopes: &[&str]| {
        let mut args = vec!["keys", "make", "--data", data.to_str().unwrap()];
        args.extend(scopes.iter().flat_map(|scope| ["--scope", scope]));
        let made = remuda(&args);
        assert!(made.status.success(), "{}", text(&made.stderr));
        text(&made.stdout)
    };
    // Before the server runs, and while it does.
    let user = key(&["submit", "read"]);
    let server = Running::serve(&data, &[]).await;
    let worker = key(&["worker"]);

    let sim = Running::sim(20).await;
    let own = dir.path().join("sidecar");
    let sidecar = Running::start(&[
        "worker",
        "--json",
        "--source",
        "queue",
        "--server",
        server.url(),
        "--key",
        &worker,
        "--comfyui",
        sim.url(),
        "--data",
        own.to_str().unwrap(),
        "--worker-id",
        "elsewhere",
    ])
    .await;
    assert_eq!(sidecar.first["workers"][0], "elsewhere");
    walk(server.url(), Some(&user), &sim).await;
    assert_eq!(sim.executions().await, 1);

    // The worker's key is no key for tasks, and without one there is nothing to see.
    let (code, _) = post(&format!("{}/api/v1/tasks", server.url()), Some(&worker), SEED_EXAMPLE).await;
    assert_eq!(code, 403);
    let (code, _) = post(&format!("{}/api/v1/tasks", server.url()), None, SEED_EXAMPLE).await;
    assert_eq!(code, 401);
    let workers = get(&format!("{}/api/v1/workers", server.url()), Some(&user)).await;
    assert_eq!(workers["workers"][0]["id"], "elsewhere", "{workers}");
}

#[tokio::test]
async fn killed_in_the_middle_it_is_adopted_and_not_rendered_again() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Running::sim(20).await;
    sim.hold().await;
    let mut server = Running::serve(dir.path(), &["--comfyui", sim.url()]).await;
    let (_, task) = post(&format!("{}/api/v1/tasks", server.url()), None, SEED_EXAMPLE).await;
    let id = task["id"].as_str().unwrap().to_owned();
    sim.rendering().await;
    server.program.kill_9().unwrap();
    drop(server);
    let server = Running::serve(dir.path(), &["--comfyui", sim.url()]).await;
    sim.release().await;
    let done = status(server.url(), None, &id, "completed").await;
    assert_eq!(done["attempts"].as_array().unwrap().len(), 1, "{done}");
    assert_eq!(sim.executions().await, 1);
}

#[tokio::test]
async fn sigterm_drains_and_exits_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Running::sim(50).await;
    sim.hold().await;
    let mut server = Running::serve(dir.path(), &["--comfyui", sim.url()]).await;
    let base = server.url().to_owned();
    let (_, task) = post(&format!("{base}/api/v1/tasks"), None, SEED_EXAMPLE).await;
    sim.rendering().await;
    server.program.term().unwrap();
    sim.release().await;
    let exit = server.program.wait_exit(PATIENCE).await.unwrap();
    assert!(exit.success(), "{exit}: {:?}", server.program.output());
    // What rendered when it was asked to stop is done, and there after the restart.
    let server = Running::serve(dir.path(), &[]).await;
    let task = server.get(&format!("/api/v1/tasks/{}", task["id"].as_str().unwrap())).await;
    assert_eq!(task["status"], "completed", "{task}");
    assert_eq!(sim.executions().await, 1);
}

/// A process that stood still cannot say who was late: its sidecars get the time to come back. Without that, and with a
/// sidecar that did not know the server's short leases, the task would be lost and rendered again.
#[tokio::test]
async fn a_server_that_stood_still_takes_nothing_from_its_sidecar() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::serve(&dir.path().join("server"), &["--lease", "8s"]).await;
    let sim = Running::sim(800).await;
    let own = dir.path().join("sidecar");
    let args = [
        "worker",
        "--json",
        "--server",
        server.url(),
        "--comfyui",
        sim.url(),
        "--data",
        own.to_str().unwrap(),
    ];
    let _sidecar = Running::start(&args).await;
    let base = server.url().to_owned();
    let (_, task) = post(&format!("{base}/api/v1/tasks"), None, SEED_EXAMPLE).await;
    let id = task["id"].as_str().unwrap();
    status(&base, None, id, "running").await;
    server.program.stop().unwrap();
    // Longer than the lease and the time to adopt it; nothing else tells that a process stands still.
    tokio::time::sleep(std::time::Duration::from_secs(14)).await;
    server.program.cont().unwrap();
    let done = status(&base, None, id, "completed").await;
    assert_eq!((&done["losses"], sim.executions().await), (&0.into(), 1), "{done}");
}
