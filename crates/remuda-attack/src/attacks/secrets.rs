//! Keys, and what is kept of them.

use crate::raw::{Client, answer_to, closes, connect, head};
use crate::stage::Stage;
use crate::world::make_key;
use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(10);
/// What a revoked key holds open ends within a second.
const REVOKED: Duration = Duration::from_secs(1);

/// Where guesses come from: an address of their own, which may be slowed for a while.
const GUESSER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 68);
/// Long enough to be a nuisance for whoever guesses.
const SLOWED: Duration = Duration::from_secs(10);
/// What the log says of a wrong key.
const WRONG_KEY: &str = "a wrong key was shown";
/// What counts them.
const LOGIN_FAILURES: &str = "remuda_login_failures_total";

pub(crate) async fn guessing(stage: Stage) -> Result<Vec<String>> {
    let guesser =
        reqwest::Client::builder().local_address(IpAddr::V4(GUESSER)).timeout(WITHIN * 3).build()?;
    let honest = reqwest::Client::builder().timeout(WITHIN * 2).build()?;
    let before = login_failures(&honest, &stage).await?;
    let mut wrong = Vec::new();
    let began = Instant::now();
    let (mut slowed, mut tried) = (false, 0);
    const GUESSES: u32 = 200;
    for n in 0..GUESSES {
        tried += 1;
        let guess = guesser.get(stage.url("/api/v1/tasks")).bearer_auth(format!("rmd_{n:064}"));
        match guess.send().await?.status().as_u16() {
            401 => {}
            429 => slowed = true,
            status => wrong.push(format!("a wrong key is answered {status}")),
        }
        slowed |= began.elapsed() > SLOWED;
        if slowed {
            break;
        }
    }
    if !slowed {
        let took = began.elapsed().as_secs_f64();
        wrong.push(format!("{GUESSES} keys were tried in {took:.1} s, and nothing slowed them"));
    }
    // Whoever has a key is not slowed by those who have none.
    let began = Instant::now();
    let patience = if stage.quick { WITHIN } else { Duration::from_secs(2) };
    let answer = honest.get(stage.url("/api/v1/tasks")).bearer_auth(&stage.keys.bob).send().await?;
    if !answer.status().is_success() || began.elapsed() > patience {
        wrong.push(format!(
            "the second tenant's key is answered {} after {:?}",
            answer.status(),
            began.elapsed()
        ));
    }
    let log = std::fs::read_to_string(&stage.log)?;
    // The line says from where, and is a warning: an operator looks for both.
    let guesser = GUESSER.to_string();
    let told = log.lines().filter(|line| line.contains(WRONG_KEY) && line.contains(&guesser));
    if !told.clone().any(|line| line.to_lowercase().contains("warn")) {
        wrong.push(format!("no warning in the log says {WRONG_KEY:?} and {guesser}"));
    }
    if told.count() >= tried as usize {
        wrong.push("every wrong key fills the log".to_owned());
    }
    if log.contains(&format!("rmd_{:064}", 1)) {
        wrong.push("the log repeats a key that was tried".to_owned());
    }
    let counted = login_failures(&honest, &stage).await? - before;
    if counted < f64::from(tried) {
        wrong.push(format!("{LOGIN_FAILURES} grew by {counted} while {tried} wrong keys were shown"));
    }
    Ok(wrong)
}

/// How many wrong keys the server has counted.
async fn login_failures(http: &reqwest::Client, stage: &Stage) -> Result<f64> {
    let metrics = http.get(stage.url("/metrics")).bearer_auth(&stage.keys.admin).send().await?;
    let metrics = metrics.text().await?;
    let line = metrics.lines().find_map(|line| line.strip_prefix(LOGIN_FAILURES)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("/metrics has no {LOGIN_FAILURES}"))?.trim().parse()?)
}

pub(crate) async fn revoked(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let made = made_key(&stage)?;
    let (id, key) = (
        made["id"].as_str().context("a key without an id")?.to_owned(),
        made["key"].as_str().context("no key")?.to_owned(),
    );
    let body = json!({"payload": crate::probe::graph(1), "not_before": "2999-01-01T00:00:00Z"});
    let task = client.task(&key, &body).await?;
    let mut wrong = Vec::new();
    let upgrade = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let slow = json!({
        "1": {"class_type": "RigProgress", "inputs":
            {"steps": 60, "step_ms": 1000, "preview": "none", "preview_size": 16, "seed": 1}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    });
    let with = |path: &str, prefer: &str, body: &str, length: usize| {
        let length = length.to_string();
        let more = [("Prefer", prefer), ("Content-Type", "application/json"), ("Content-Length", &length)];
        head("POST", path, &stage.server, &key, &more) + body
    };
    let (waits, renders) = (body.to_string(), json!({"prompt": slow}).to_string());
    let read = |path: &str| head("GET", path, &stage.server, &key, &[]);
    // Some are answered at once and go on; the others have no answer yet.
    let requests = [
        ("an event stream", true, read(&format!("/api/v1/tasks/{task}/events"))),
        ("the stream of all events", true, read("/api/v1/events")),
        ("a websocket", true, head("GET", "/ws", &stage.server, &key, &upgrade)),
        ("a held request", false, with("/api/v1/tasks", "wait=60", &waits, waits.len())),
        ("a synchronous request", false, with("/prompt_sync", "none", &renders, renders.len())),
        ("an upload", false, with("/api/v1/assets?filename=x.bin", "none", "the first bytes", 1_000_000)),
    ];
    let mut open = Vec::new();
    for (what, answered, request) in requests {
        let mut stream = connect(&stage.server).await?;
        if answered {
            let (status, _) = answer_to(&mut stream, request.as_bytes(), WITHIN).await?;
            anyhow::ensure!(status < 300, "{what} is answered {status}");
        } else {
            tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await?;
        }
        open.push((what, answered, stream));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let revoked =
        Command::new(&stage.remuda).args(["keys", "revoke", &id, "--data"]).arg(&stage.data).output()?;
    anyhow::ensure!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
    let quick = stage.quick;
    let looked = open.iter_mut().map(|(what, answered, stream)| async move {
        let ended = if *answered {
            closes(stream, allowed(quick)).await
        } else {
            // It may also be answered, on a connection that stays.
            let mut piece = [0; 1024];
            let read = tokio::io::AsyncReadExt::read(stream, &mut piece);
            tokio::time::timeout(allowed(quick), read).await.is_ok()
        };
        (*what, ended)
    });
    for (what, ended) in futures_util::future::join_all(looked).await {
        if !ended {
            wrong.push(format!("{what} of a revoked key goes on"));
        }
    }
    if client.get("/api/v1/tasks", &key).await?.status != 401 {
        wrong.push("a revoked key still opens".to_owned());
    }
    Ok(wrong)
}

fn allowed(quick: bool) -> Duration {
    // The short form is made with a binary that is not optimized, beside other tests.
    if quick { REVOKED * 5 } else { REVOKED }
}

fn made_key(stage: &Stage) -> Result<serde_json::Value> {
    let make = ["keys", "make", "--json", "--name", "short", "--tenant", "mallory", "--data"];
    let output = Command::new(&stage.remuda).args(make).arg(&stage.data).output()?;
    let made: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    Ok(match made.get("record") {
        Some(record) => json!({"id": record["id"], "key": made["key"]}),
        None => made,
    })
}

pub(crate) async fn permissions(stage: Stage) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let mode = |path: &Path| Ok::<_, std::io::Error>(std::fs::metadata(path)?.permissions().mode() & 0o777);
    if mode(&stage.data)? != 0o700 {
        wrong.push(format!("the data directory, which existed, has mode {:o}", mode(&stage.data)?));
    }
    for entry in std::fs::read_dir(&stage.data)?.flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let private = path.is_file()
            && ((name.starts_with("remuda.db") && !name.ends_with("lock"))
                || name == "owner"
                || name.contains("secret"));
        if private && mode(&path)? != 0o600 {
            wrong.push(format!("{name} has mode {:o}", mode(&path)?));
        }
    }
    Ok(wrong)
}

pub(crate) async fn at_rest(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let planted = "comfyui-PLANTED-PAID-KEY-8f2d1c";
    let graph = json!({
        "1": {"class_type": "RigProgress", "inputs":
            {"steps": 12, "step_ms": 250, "preview": "none", "preview_size": 16, "seed": 1}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    });
    let body = json!({"prompt": graph, "extra_data": {"api_key_comfy_org": planted, "auth_token_comfy_org": planted}});
    let answer = client.post("/prompt", &stage.keys.mallory, body.to_string()).await?;
    anyhow::ensure!(answer.is_success(), "a prompt with a paid key is refused: {}", answer.text());
    let mut wrong = Vec::new();
    for when in ["while it waits or runs", "after its end"] {
        if let Some(file) = holds(&stage.data, planted.as_bytes()) {
            wrong.push(format!("{when} the paid key is readable in {file}"));
        }
        if std::fs::read_to_string(&stage.log)?.contains(planted) {
            wrong.push(format!("{when} the paid key is in the log"));
        }
        let id = answer.json()["prompt_id"].as_str().unwrap_or_default().to_owned();
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            let history = client.get(&format!("/history/{id}"), &stage.keys.mallory).await?;
            if history.json().get(&id).is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    for path in ["/history", "/queue", "/api/jobs"] {
        let shown = client.get(path, &stage.keys.mallory).await?;
        if String::from_utf8_lossy(&shown.body).contains(planted) {
            wrong.push(format!("{path} shows the paid key"));
        }
    }
    wrong.extend(super::cluster::at_rest(&stage).await?);
    Ok(wrong)
}

/// Keys that are not where ComfyUI expects them, or under names that only resemble those that it knows.
pub(crate) async fn nested(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = &stage.keys.mallory;
    let planted = |n: usize| format!("comfyui-NESTED-PAID-KEY-{n}-41c7ab");
    let extra = json!({
        "auth": {"api_key_comfy_org": planted(0)},
        "nodes": {"openai": [{"options": {"my_api_key": planted(1)}}]},
        "auth_token_x": planted(2),
        "my_api_key": planted(3),
        "Authorization": format!("Bearer {}", planted(4)),
        "openaiApiKey": planted(5),
        "list": [{"password": planted(6)}, {"client_secret": [planted(7)]}],
    });
    let graph = json!({
        "1": {"class_type": "RigProgress", "inputs":
            {"steps": 4, "step_ms": 250, "preview": "none", "preview_size": 16, "seed": 77}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    });
    let body = json!({"prompt": graph, "extra_data": extra}).to_string();
    let answer = client.post("/prompt", key, body).await?;
    anyhow::ensure!(answer.is_success(), "a prompt with keys is refused: {}", answer.text());
    let id = answer.json()["prompt_id"].as_str().context("a prompt without an id")?.to_owned();
    let mut wrong = Vec::new();
    for when in ["while it waits or runs", "after its end"] {
        let tasks = client.get("/api/v1/tasks?limit=5", key).await?.json();
        let tasks = tasks["tasks"].as_array().cloned().unwrap_or_default();
        let mut paths = vec!["/history".to_owned(), "/queue".to_owned(), "/api/jobs".to_owned()];
        paths.extend([format!("/history/{id}"), format!("/api/jobs/{id}"), "/api/v1/tasks".to_owned()]);
        paths.extend(tasks.iter().filter_map(|task| Some(format!("/api/v1/tasks/{}", task["id"].as_str()?))));
        let mut shown = Vec::new();
        for path in paths {
            for key in [key, &stage.keys.admin] {
                let body = client.get(&path, key).await?.body;
                shown.push((path.clone(), String::from_utf8_lossy(&body).into_owned()));
            }
        }
        shown.push(("the log".to_owned(), std::fs::read_to_string(&stage.log)?));
        for secret in (0..8).map(planted) {
            // The database, what it has not yet merged (-wal), and everything else that was written.
            if let Some(file) = holds(&stage.data, secret.as_bytes()) {
                wrong.push(format!("{when} {secret} is readable in {file}"));
            }
            let found = shown.iter().find(|(_, text)| text.contains(&secret));
            if let Some((place, _)) = found {
                wrong.push(format!("{when} {secret} is shown by {place}"));
            }
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        while client.get(&format!("/history/{id}"), key).await?.json().get(&id).is_none() {
            anyhow::ensure!(Instant::now() < deadline, "the prompt does not end");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(wrong)
}

/// A file below the folder that contains these bytes.
fn holds(folder: &Path, bytes: &[u8]) -> Option<String> {
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = holds(&path, bytes) {
                return Some(found);
            }
        } else if std::fs::read(&path)
            .is_ok_and(|content| content.windows(bytes.len()).any(|part| part == bytes))
        {
            return Some(entry.file_name().to_string_lossy().into_owned());
        }
    }
    None
}

pub(crate) async fn endpoints(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let mut wrong = Vec::new();
    let list = client.get("/api/v1/workers", &stage.keys.bob).await?.json();
    let workers = list["workers"].as_array().cloned().unwrap_or_default();
    anyhow::ensure!(!workers.is_empty(), "no worker is shown");
    let id = workers[0]["id"].as_str().unwrap_or_default().to_owned();
    let one = client.get(&format!("/api/v1/workers/{id}"), &stage.keys.bob).await?.json();
    for worker in workers.iter().chain([&one]) {
        if !worker["endpoint"].is_null() || !worker["port"].is_null() {
            wrong.push(format!("the address {} is shown without the scope admin", worker["endpoint"]));
        }
    }
    let list = client.get("/api/v1/workers", &stage.keys.admin).await?.json();
    if list["workers"][0]["endpoint"].as_str().is_none() {
        wrong.push("an operator does not see the address of a worker".to_owned());
    }
    wrong.dedup();
    Ok(wrong)
}

pub(crate) async fn scopes(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let make = |scopes: &[&str]| make_key(&stage.remuda, &stage.data, "narrow", "mallory", scopes);
    let (read, submit) = (make(&["read"])?, make(&["submit"])?);
    let graph = json!({"payload": crate::probe::graph(1)}).to_string();
    let prompt = json!({"prompt": crate::probe::graph(1)}).to_string();
    let tries: Vec<(&str, &str, Method, &str, String)> = vec![
        ("read", &read, Method::POST, "/api/v1/tasks", graph.clone()),
        ("read", &read, Method::POST, "/prompt", prompt.clone()),
        ("read", &read, Method::POST, "/api/v1/assets?filename=a", "x".to_owned()),
        ("read", &read, Method::GET, "/metrics", String::new()),
        ("read", &read, Method::GET, "/api/v1/worker/installation", String::new()),
        (
            "read",
            &read,
            Method::GET,
            "/internal/v1/frames/5a5a5a5a-0000-4000-8000-000000000001",
            String::new(),
        ),
        ("submit", &submit, Method::GET, "/metrics", String::new()),
        ("submit", &submit, Method::POST, "/api/v1/worker/acquire", "{}".to_owned()),
        ("worker", &stage.keys.worker, Method::POST, "/api/v1/tasks", graph.clone()),
        ("worker", &stage.keys.worker, Method::POST, "/prompt", prompt),
        ("worker", &stage.keys.worker, Method::GET, "/api/v1/tasks", String::new()),
        ("worker", &stage.keys.worker, Method::GET, "/history", String::new()),
        ("worker", &stage.keys.worker, Method::GET, "/settings", String::new()),
        ("worker", &stage.keys.worker, Method::GET, "/metrics", String::new()),
        ("no", "", Method::GET, "/api/v1/tasks", String::new()),
        ("no", "", Method::GET, "/object_info", String::new()),
        ("no", "", Method::POST, "/api/v1/tasks", graph),
    ];
    let mut wrong = Vec::new();
    for (scope, key, method, path, body) in tries {
        let request = client
            .request(method.clone(), path, key)
            .header("remuda-owner", "5a5a5a5a-0000-4000-8000-000000000001");
        let answer = client.send(request.header("content-type", "application/json").body(body)).await?;
        if !matches!(answer.status, 401 | 403 | 404) {
            wrong.push(format!("{method} {path} with the scope {scope}: {}", answer.status));
        }
    }
    Ok(wrong)
}
