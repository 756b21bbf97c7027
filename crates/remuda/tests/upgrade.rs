//! The store of an earlier release, killed in the middle of its work: every record is served, and what was under way is
//! finished. The stores are in `fixtures/`, where a README says what is in them.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "clippy does not see that the helpers are part of tests"
)]

mod support;

use remuda_testbed::postgres;
use remuda_testbed::process::Program;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{PATIENCE, Running, get, status};

/// The tasks in the store ended long ago, and are to be kept all the same.
const LONG: &str = "3650d";

/// Unpacks a store, and returns what its README promises.
fn unpacked(kind: &str, into: &Path) -> Value {
    let archive =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/9dcd97c").join(format!("{kind}.tar.gz"));
    let tar = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(into).status().unwrap();
    assert!(tar.success());
    serde_json::from_slice(&std::fs::read(into.join("fixture.json")).unwrap()).unwrap()
}

fn text<'a>(fixture: &'a Value, pointer: &str) -> &'a str {
    fixture.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer} in {fixture}"))
}

/// The sidecar of the store: the same process as far as its gateway can tell.
fn sidecar(data: &Path, server: &str, comfyui: &str, fixture: &Value) -> Program {
    let own: PathBuf = data.join("sidecar");
    std::fs::create_dir(&own).unwrap();
    std::fs::copy(data.join("sidecar-owner"), own.join("owner")).unwrap();
    let (comfyui, own) = (format!("{comfyui} sidecar"), own.display().to_string());
    let name = text(fixture, "/sidecar/worker");
    let words = ["worker", "--server", server, "--comfyui", &comfyui, "--data", &own, "--worker-id", name];
    let key = [("REMUDA_API_KEY", text(fixture, "/keys/worker"))];
    Program::start(env!("CARGO_BIN_EXE_remuda"), words, key).unwrap()
}

async fn bytes(url: &str, key: &str) -> Vec<u8> {
    let answer = reqwest::Client::new().get(url).bearer_auth(key).send().await.unwrap();
    answer.error_for_status().unwrap().bytes().await.unwrap().to_vec()
}

/// What renders at the sidecar's ComfyUI, and what waits behind it: it went on while its server was replaced.
async fn render_on(comfyui: &str, prompts: [&str; 2]) {
    for prompt in prompts {
        let graph = json!({
            "1": {"class_type": "RigProgress", "inputs":
                {"steps": 20, "step_ms": 250, "preview": "none", "preview_size": 16, "seed": 1}},
            "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": prompt}},
        });
        let body = json!({"prompt": graph, "prompt_id": prompt}).to_string();
        let post = reqwest::Client::new().post(format!("{comfyui}/prompt"));
        let answer = post.header("content-type", "application/json").body(body).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }
}

/// `held`: what the tasks `leased` and `with_asset` are called at the ComfyUI of the sidecar that has them.
async fn upgraded(data: &Path, store: &str, fixture: &Value, held: [&str; 2]) {
    let (own, beside) = (Running::sim(1).await, Running::sim(1).await);
    render_on(beside.url().trim_end_matches('/'), held).await;
    let comfyui = format!("{} own", own.url());
    let more = ["--store", store, "--retention", LONG, "--lease", "5s", "--comfyui", &comfyui];
    let server = Running::serve(data, &more).await;
    let (base, key) = (server.url().trim_end_matches('/'), text(fixture, "/keys/tenant"));
    let _sidecar = sidecar(data, base, beside.url(), fixture);
    let task = |name: &str| text(fixture, &format!("/tasks/{name}")).to_owned();

    // What had ended is served as it was.
    let done = status(base, Some(key), &task("completed"), "completed").await;
    assert_eq!(
        (&done["workflow_id"], &done["metadata"]["order"], &done["priority"]),
        (&"done".into(), &7.into(), &7.into())
    );
    let picture = bytes(&format!("{base}{}", done["result"]["files"][0]["url"].as_str().unwrap()), key).await;
    assert!(picture.starts_with(b"\x89PNG"));
    let failed = status(base, Some(key), &task("failed"), "failed").await;
    assert!(failed["error"].as_str().unwrap().contains("broken on purpose"), "{failed}");
    assert_eq!(failed["error_class"], "execution");
    status(base, Some(key), &task("cancelled"), "cancelled").await;
    let prompt = text(fixture, "/prompts/completed");
    let history = get(&format!("{base}/history/{prompt}"), Some(key)).await;
    assert_eq!(history[prompt]["status"]["completed"], true, "{history}");
    // What clients keep, too.
    assert_eq!(get(&format!("{base}/settings"), Some(key)).await["Comfy.ColorPalette"], "dark");
    assert_eq!(get(&format!("{base}/userdata/workflows%2Fone.json"), Some(key)).await["a"], 1);
    let asset = bytes(&format!("{base}/api/v1/assets/{}", text(fixture, "/asset")), key).await;
    assert!(asset.starts_with(b"\x89PNG"));
    let upload = bytes(&format!("{base}/view?filename=cat.png&type=input"), key).await;
    assert_eq!(upload, asset);

    // What was under way is finished.
    for name in ["running", "leased", "pending", "with_asset"] {
        let ended = status(base, Some(key), &task(name), "completed").await;
        assert_eq!(ended["result"]["files"].as_array().map(Vec::len), Some(1), "{name}: {ended}");
    }
    // What rendered on is found there, and not rendered again.
    for (name, prompt) in ["leased", "with_asset"].into_iter().zip(held) {
        let ended = get(&format!("{base}/api/v1/tasks/{}", task(name)), Some(key)).await;
        assert_eq!((&ended["attempt_count"], &ended["losses"]), (&1.into(), &0.into()), "{name}: {ended}");
        assert_eq!(ended["attempts"][0]["prompt_id"], prompt, "{name}: {ended}");
    }
    let prompt = text(fixture, "/prompts/pending");
    let deadline = std::time::Instant::now() + PATIENCE;
    while get(&format!("{base}/history/{prompt}"), Some(key)).await[prompt]["status"]["completed"] != true {
        assert!(std::time::Instant::now() < deadline, "the pending prompt does not end");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let scheduled = get(&format!("{base}/api/v1/tasks/{}", task("scheduled")), Some(key)).await;
    assert_eq!((&scheduled["status"], &scheduled["reason"]), (&"pending".into(), &"scheduled".into()));
    // Nobody got another's key, and the operator's still opens everything.
    let workers = get(&format!("{base}/api/v1/workers"), Some(text(fixture, "/keys/admin"))).await;
    assert!(workers["workers"].as_array().is_some_and(|workers| workers.len() >= 2), "{workers}");
}

#[tokio::test]
async fn a_sqlite_store_of_9dcd97c_is_taken_over_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = unpacked("sqlite", dir.path());
    // What renders began a moment ago, and not when the store was made: there is a limit to how long a task may.
    let file = rusqlite::Connection::open(dir.path().join("remuda.db")).unwrap();
    let now = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
    file.execute(&format!("UPDATE lease SET rendering_since = {now} WHERE rendering_since IS NOT NULL"), ())
        .unwrap();
    drop(file);
    let store = format!("sqlite:{}", dir.path().join("remuda.db").display());
    let held = ["fed49d9b-7d97-4b35-9cba-59cd3326c42b", "a65e898f-71ed-4876-83c7-d5b34b58d06e"];
    upgraded(dir.path(), &store, &fixture, held).await;
}

#[tokio::test]
async fn a_postgresql_store_of_9dcd97c_is_taken_over_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = unpacked("postgres", dir.path());
    let url = postgres::database().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let dump = std::fs::read_to_string(dir.path().join("remuda.sql")).unwrap();
    client.batch_execute(&dump).await.unwrap();
    // As above.
    let begun = "UPDATE remuda.lease SET rendering_since = now() WHERE rendering_since IS NOT NULL";
    assert_eq!(client.execute(begun, &[]).await.unwrap(), 2);
    drop(client);
    connection.await.unwrap().unwrap();
    let held = ["72e40b37-e085-4519-b3d1-409ae3fb9142", "526f605b-9c5e-455c-ab01-c1cdda46daed"];
    upgraded(dir.path(), &url, &fixture, held).await;
}
