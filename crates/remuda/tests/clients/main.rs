//! ComfyUI clients that others wrote, and ComfyUI's own web page, in front of Remuda.
//!
//! Each renders a workflow through a Remuda with two simulated ComfyUIs, and the one that renders it is killed on
//! the way. The client must not notice more than that it takes longer. `cargo xtask test --only needs` installs
//! the clients; the scripts here only call them.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests may fail")]

mod installed;
mod ranch;
#[path = "../support/mod.rs"]
mod support;

use installed::Client;
use ranch::Ranch;
use remuda_testbed::process::Program;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use support::PATIENCE;
use tempfile::TempDir;
use tokio::task::{LocalSet, spawn_local};

/// A ComfyUI that is gone for a minute has lost what it rendered; only then it is rendered elsewhere.
const MOURNING: Duration = Duration::from_secs(60);

/// What the scripts print, one per line.
fn told(client: &Program, what: &str) -> Vec<Value> {
    let lines = client.output();
    let lines = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line.get(what).is_some().then_some(line)).collect()
}

/// A client renders a workflow; once it shows progress, the ComfyUI that renders it is killed.
async fn renders_although_a_comfyui_is_killed(client: Client, shows_progress: bool) {
    let mut ranch = Ranch::open(&[]).await;
    let out = TempDir::new().expect("a folder");
    let mut running = client.start(ranch.url(), out.path());
    if shows_progress {
        running.wait_line("\"progress\"", PATIENCE).await.expect("progress");
    }
    let survivor = ranch.kill_the_busy_one().await;
    let status = running.wait_exit(MOURNING + PATIENCE).await.expect("the client ends");
    assert!(status.success(), "the client ended with {status}");

    let files = told(&running, "file");
    assert_eq!(files.len(), 1, "one picture: {files:?}");
    let name = files[0]["file"].as_str().expect("a name");
    let picture = std::fs::read(out.path().join(name)).expect("the picture");
    assert!(is_whole_png(&picture), "{name} of {} bytes is not a picture", picture.len());
    if shows_progress {
        let last = told(&running, "progress").pop().expect("progress");
        let near = last["of"].as_u64().expect("a number") - 1;
        assert!(last["progress"].as_u64().expect("a number") >= near, "the progress ended at {last}");
    }

    // Nothing was rendered twice where it could be avoided, and the history says so to everybody.
    assert_eq!(survivor.executions().await, 1);
    let history = ranch.history().await;
    assert_eq!(history.len(), 1, "{history:?}");
    assert_eq!(history[0]["status"]["status_str"], "success", "{history:?}");
    assert_eq!(history[0]["status"]["completed"], true, "{history:?}");
}

/// The signature at the start and the last chunk at the end.
fn is_whole_png(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.ends_with(b"IEND\xae\x42\x60\x82")
}

/// All at the same time, each with a Remuda of its own: most of it is waiting for ComfyUIs that do not come back.
#[tokio::test]
async fn clients_of_others_do_not_notice_that_a_comfyui_is_killed() {
    let clients = [
        ("comfy-api-simplified", Client::python("comfy-api-simplified", &[]), true),
        ("comfykit by websocket", Client::python("comfykit", &["websocket"]), true),
        ("comfykit by polling", Client::python("comfykit", &["http"]), false),
        ("comfy-cli", Client::python("comfy-cli", &[]), true),
        ("@saintno/comfyui-sdk", Client::javascript("saintno"), true),
        ("@stable-canvas/comfyui-client", Client::javascript("stable-canvas"), true),
        ("comfy-ui-client", Client::javascript("comfy-ui-client"), true),
    ];
    let mut failed = Vec::new();
    let all = async {
        let running = clients.map(|(name, client, shows_progress)| {
            (name, spawn_local(renders_although_a_comfyui_is_killed(client, shows_progress)))
        });
        for (name, client) in running {
            if client.await.is_err() {
                failed.push(name);
            }
        }
    };
    LocalSet::new().run_until(all).await;
    assert!(failed.is_empty(), "these noticed: {}", failed.join(", "));
}

/// ComfyUI's page in a browser: run, watch, see the picture, cancel, reload, find the history.
#[tokio::test]
async fn the_stock_frontend_works() {
    let frontend = installed::frontend();
    let mut ranch = Ranch::open(&["--frontend", frontend.to_str().expect("a path that is text")]).await;
    // Kept, to be looked at.
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("frontend");
    std::fs::create_dir_all(&out).expect("a folder for the screenshots");
    let mut page = Client::frontend().start(ranch.url(), &out);
    page.wait_line("\"progress\"", PATIENCE).await.expect("progress");
    ranch.kill_the_busy_one().await;
    let status = page.wait_exit(MOURNING + PATIENCE * 2).await.expect("the page is done");
    assert!(status.success(), "the page ended with {status}");

    assert_eq!(told(&page, "picture").len(), 2, "seen when it was made and after the reload");
    let jobs = ranch.jobs().await;
    let mut states: Vec<_> = jobs.iter().map(|job| job["status"].as_str().expect("a status")).collect();
    states.sort_unstable();
    assert_eq!(states, ["cancelled", "completed"], "{jobs:?}");
    for name in ["picture.png", "history.png"] {
        assert!(is_whole_png(&std::fs::read(out.join(name)).expect(name)));
    }
}
