//! What a key of the scope worker must not reach: everything but its own leases.

use super::descriptions;
use crate::raw::{Answer, Client};
use crate::stage::{SIDECAR, Stage};
use anyhow::{Context, Result, bail};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// Fences are small numbers: whoever may try them all has them.
pub(super) const FENCES: std::ops::RangeInclusive<i64> = 0..=20;
pub(super) const SOMEBODY: &str = "5a5a5a5a-0000-4000-8000-000000000001";
/// How long something may take to begin.
const BEGIN: Duration = Duration::from_secs(30);

/// The attacker with a key of the scope worker.
pub(super) struct Thief {
    pub(super) client: Client,
    stage: Stage,
}

impl Thief {
    pub(super) fn new(stage: &Stage) -> Result<Thief> {
        Ok(Thief { client: Client::new(stage)?, stage: stage.clone() })
    }

    /// The process ids that it can claim to be: one of its own, and the honest one's.
    fn owners(&self) -> Vec<String> {
        [Some(SOMEBODY.to_owned()), self.stage.sidecar_owner.clone()].into_iter().flatten().collect()
    }

    pub(super) async fn ask(
        &self,
        owner: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Answer> {
        let path = format!("/api/v1/worker/{path}");
        let request =
            self.client.request(method, &path, &self.stage.keys.worker).header("remuda-owner", owner);
        let request = match body {
            Some(body) => request.header("content-type", "application/json").body(body.to_string()),
            None => request,
        };
        self.client.send(request).await
    }

    /// A task of the second tenant that the honest sidecar renders for a while.
    async fn victim(&self, seconds: u64) -> Result<String> {
        let graph = json!({
            "1": {"class_type": "RigProgress", "inputs":
                {"steps": seconds * 4, "step_ms": 250, "preview": "none", "preview_size": 16, "seed": unlike_any()}},
            "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "victim"}},
        });
        let task = self.client.task(&self.stage.keys.bob, &json!({"payload": graph})).await?;
        self.reaches(&task, "running").await?;
        Ok(task)
    }

    async fn view(&self, task: &str) -> Result<Value> {
        Ok(self.client.get(&format!("/api/v1/tasks/{task}"), &self.stage.keys.bob).await?.json())
    }

    async fn reaches(&self, task: &str, status: &str) -> Result<Value> {
        let deadline = Instant::now() + BEGIN;
        loop {
            let view = self.view(task).await?;
            if view["status"] == status {
                return Ok(view);
            }
            if Instant::now() > deadline {
                bail!(
                    "the task of the second tenant is {} and not {status}: {}",
                    view["status"],
                    view["error"]
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether the task ends as if nobody had touched it.
    async fn undisturbed(&self, task: &str, wrong: &mut Vec<String>) -> Result<()> {
        match self.reaches(task, "completed").await {
            Ok(view) => {
                let attempts = view["attempts"].as_array().map_or(0, Vec::len);
                if attempts != 1 {
                    wrong.push(format!("the second tenant's task needed {attempts} attempts"));
                }
                if view["result"]["files"].as_array().is_none_or(Vec::is_empty) {
                    wrong.push("the second tenant's task completed without its picture".to_owned());
                }
            }
            Err(error) => wrong.push(format!("{error:#}")),
        }
        Ok(())
    }
}

pub(crate) async fn spy(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let task = thief.victim(2).await?;
    let mut wrong = Vec::new();
    for owner in thief.owners() {
        let answer = thief.ask(&owner, Method::GET, &format!("leases?worker={SIDECAR}"), None).await?;
        if answer.is_success() && answer.text().contains(&task) {
            wrong.push(format!("the lease of another's worker was told: {}", answer.text()));
        }
    }
    thief.undisturbed(&task, &mut wrong).await?;
    Ok(wrong)
}

pub(crate) async fn spoof(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let owner = stage.sidecar_owner.clone().context("there is no sidecar")?;
    let task = thief.victim(2).await?;
    let mut wrong = Vec::new();
    for fence in FENCES {
        let adopt = json!({"worker": SIDECAR, "worker_fence": fence, "known": []});
        let answer = thief.ask(&owner, Method::POST, "adopt", Some(adopt)).await?;
        if answer.is_success() && answer.text().contains(&task) {
            wrong.push("another's task, with its graph, was adopted under its owner's id".to_owned());
        }
        let path = format!("tasks/{task}/outputs/0?fence={fence}&attempt=1&filename=forged.png");
        let answer = thief.ask(&owner, Method::PUT, &path, Some(json!("forged"))).await?;
        if answer.is_success() {
            wrong.push("a file was delivered for another's task under its owner's id".to_owned());
        }
    }
    wrong.dedup();
    thief.undisturbed(&task, &mut wrong).await?;
    Ok(wrong)
}

/// A graph that was rendered before would be answered from ComfyUI's cache.
fn unlike_any() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(7, |time| time.as_micros() as u64 % 1_000_000_000_000)
}

/// Tries one request with every owner and fence; each that succeeds is a violation.
async fn with_every_fence(
    stage: Stage,
    what: &str,
    make: impl Fn(&str, i64) -> (Method, String, Option<Value>),
) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let task = thief.victim(2).await?;
    let mut wrong = Vec::new();
    for owner in thief.owners() {
        for fence in FENCES {
            let (method, path, body) = make(&task, fence);
            let answer = thief.ask(&owner, method, &path, body).await?;
            if answer.is_success() {
                let whose = if owner == SOMEBODY { "its own id" } else { "the other's id" };
                wrong.push(format!("{what} under {whose}, fence {fence}: {}", answer.status));
            } else if answer.status >= 500 {
                wrong.push(format!("{what}: {} {}", answer.status, answer.text()));
            }
        }
    }
    wrong.truncate(4);
    thief.undisturbed(&task, &mut wrong).await?;
    Ok(wrong)
}

pub(crate) async fn forge_end(stage: Stage) -> Result<Vec<String>> {
    with_every_fence(stage, "the end of another's task was reported", |task, fence| {
        let result = json!({"files": [], "outputs": {"forged": true}, "execution_ms": 1});
        let ending = json!({"how": "completed", "result": result, "gpu_ms": null});
        (
            Method::POST,
            "end".to_owned(),
            Some(json!({"lease": {"task": task, "fence": fence}, "ending": ending})),
        )
    })
    .await
}

pub(crate) async fn release(stage: Stage) -> Result<Vec<String>> {
    with_every_fence(stage, "another's worker was let go of", |_, fence| {
        (Method::POST, "release".to_owned(), Some(json!({"worker": SIDECAR, "fence": fence})))
    })
    .await
}

pub(crate) async fn give_back(stage: Stage) -> Result<Vec<String>> {
    with_every_fence(stage, "another's task was given back", |task, fence| {
        (Method::POST, "give-back".to_owned(), Some(json!({"lease": {"task": task, "fence": fence}})))
    })
    .await
}

pub(crate) async fn discard(stage: Stage) -> Result<Vec<String>> {
    with_every_fence(stage, "outputs of another's task were deleted", |task, fence| {
        (Method::DELETE, format!("tasks/{task}/outputs?fence={fence}&attempt=1"), None)
    })
    .await
}

pub(crate) async fn beat(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let task = thief.victim(2).await?;
    let mut wrong = Vec::new();
    for owner in thief.owners() {
        for fence in FENCES {
            let lease = json!({"task": task, "fence": fence});
            let lease = json!({"lease": lease, "phase": "collecting", "progress": 1e300});
            let body = json!({"leases": [lease], "workers": [], "wait_ms": 0});
            let answer = thief.ask(&owner, Method::POST, "beat", Some(body)).await?;
            let lost = answer.json()["lost"].as_array().map_or(0, Vec::len);
            if answer.is_success() && lost == 0 {
                wrong.push(format!("another's lease was renewed (fence {fence})"));
            }
        }
    }
    let progress = thief.view(&task).await?["progress"].to_string();
    if progress.contains("e300") || progress.contains("00000000") {
        wrong.push(format!("progress is not clamped: {progress}"));
    }
    wrong.dedup();
    thief.undisturbed(&task, &mut wrong).await?;
    Ok(wrong)
}

pub(crate) async fn frames(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let task = thief.victim(2).await?;
    let events = thief.client.request(Method::GET, &format!("/api/v1/tasks/{task}/events"), &stage.keys.bob);
    let events = tokio::spawn(async move { events.send().await?.text().await });
    let frame = json!({"type": "progress", "fraction": 0.5, "node": "mallory-was-here", "value": 1.0, "max": 2.0,
        "nodes_done": 1, "nodes": 2});
    let head = json!({"task": task, "attempt": 1, "what": frame, "payload": 0}).to_string();
    let mut body = u32::try_from(head.len())?.to_be_bytes().to_vec();
    body.extend_from_slice(head.as_bytes());
    for _ in 0..5 {
        for owner in thief.owners() {
            let request = thief.client.request(Method::POST, "/api/v1/worker/frames", &stage.keys.worker);
            let request = request.header("remuda-owner", owner).body(body.clone());
            thief.client.send(request.header("content-type", "application/vnd.remuda.frames")).await?;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut wrong = Vec::new();
    thief.undisturbed(&task, &mut wrong).await?;
    if events.await??.contains("mallory-was-here") {
        wrong.push("somebody else's frames were shown to the second tenant".to_owned());
    }
    Ok(wrong)
}

/// Where the workers are, by what an operator sees.
async fn endpoints(thief: &Thief) -> Result<Vec<(String, String, String)>> {
    let list = thief.client.get("/api/v1/workers", &thief.stage.keys.admin).await?.json();
    let workers = list["workers"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(workers
        .iter()
        .map(|worker| (text(&worker["id"]), text(&worker["endpoint"]), text(&worker["status"])))
        .collect())
}

pub(crate) async fn same_name(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let task = thief.victim(2).await?;
    let mut wrong = Vec::new();
    for owner in thief.owners() {
        let spec = json!({"id": SIDECAR, "endpoint": "http://127.0.0.1:9", "name": null, "labels": []});
        thief.ask(&owner, Method::POST, "acquire", Some(json!({"spec": spec}))).await?;
    }
    let sim = format!("http://{}", stage.sim);
    let honest = endpoints(&thief).await?;
    if !honest.iter().any(|(_, endpoint, _)| endpoint.trim_end_matches('/') == sim) {
        wrong.push(format!("the honest worker's address was replaced: {honest:?}"));
    }
    thief.undisturbed(&task, &mut wrong).await?;
    Ok(wrong)
}

/// A listener of the attacker's: whoever comes was sent by the gateway.
pub(crate) async fn gateway(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let canary = TcpListener::bind(("127.0.0.1", stage.port)).await?;
    let endpoint = format!("http://127.0.0.1:{}", stage.port);
    let owner = stage.gateway_owner.clone().context("the gateway has no owner file")?;
    let fetch = async {
        for owner in [owner.as_str(), SOMEBODY] {
            let spec = json!({"id": "canary", "endpoint": endpoint, "name": null, "labels": []});
            thief.ask(owner, Method::POST, "acquire", Some(json!({"spec": spec}))).await?;
            for _ in 0..10 {
                for path in
                    ["/extensions/x/y.js", "/view?filename=a.png&type=output", "/models/x", "/internal/logs"]
                {
                    let asked = thief.client.get(path, &stage.keys.mallory);
                    let _ = tokio::time::timeout(Duration::from_secs(1), asked).await;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Ok::<_, anyhow::Error>(None)
    };
    let caught = async {
        let (mut stream, _) = canary.accept().await?;
        let mut text = [0; 200];
        let read = stream.read(&mut text).await.unwrap_or_default();
        Ok(Some(String::from_utf8_lossy(&text[..read]).lines().next().unwrap_or_default().to_owned()))
    };
    let came = tokio::select! { came = caught => came, done = fetch => done }?;
    Ok(came
        .map(|line| format!("the gateway fetched from an address that a worker's key named: {line}"))
        .into_iter()
        .collect())
}

pub(crate) async fn delivery(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let mut wrong = Vec::new();
    let spec = json!({"id": "mine", "endpoint": "http://127.0.0.1:9", "name": null, "labels": ["mine"]});
    let acquired = thief.ask(SOMEBODY, Method::POST, "acquire", Some(json!({"spec": spec}))).await?;
    let fence = acquired.json()["worker"]["fence"].as_i64().context("a worker without a fence")?;
    let capabilities = json!({"labels": ["mine"], "nodes": ["RigProgress", "SaveImage"], "models": []});
    let claim =
        json!({"worker": "mine", "worker_fence": fence, "capabilities": capabilities, "wait_ms": 10_000});
    let submit = async {
        let body = json!({"payload": crate::probe::graph(3), "labels": ["mine"]});
        thief.client.task(&stage.keys.mallory, &body).await
    };
    let (claimed, submitted) = tokio::join!(thief.ask(SOMEBODY, Method::POST, "claim", Some(claim)), submit);
    let (claimed, task) = (claimed?, submitted?);
    let lease = claimed.json()["claim"]["lease"].clone();
    let fence = lease["fence"]
        .as_i64()
        .with_context(|| format!("nothing was claimed: {} {}", claimed.status, claimed.text()))?;
    let attempt = lease["attempt"].as_i64().unwrap_or(1);
    for name in ["..%2F..%2F..%2Fevil.png", "%2Ftmp%2Fevil.png", "..", "a%00evil.png", "..%5Cevil.png"] {
        let path = format!("tasks/{task}/outputs/0?fence={fence}&attempt={attempt}&filename={name}");
        let answer = thief.ask(SOMEBODY, Method::PUT, &path, Some(json!("evil"))).await?;
        if answer.status >= 500 {
            wrong.push(format!("{name}: {} {}", answer.status, answer.text()));
        }
        let key = answer.json()["key"].as_str().unwrap_or_default().to_owned();
        if !key.is_empty() && (key.split('/').any(|part| part == "..") || !key.contains(&task)) {
            wrong.push(format!("{name} was stored as {key}"));
        }
    }
    let own = Path::new("outputs").join(&task);
    if let Some(found) =
        find(&stage.data, "evil").into_iter().find(|path| !path.contains(&own.display().to_string()))
    {
        wrong.push(format!("a delivered file is at {found}"));
    }
    // A result that names a file which is not its own.
    let key = |inner: &str| format!("outputs/{task}/{attempt}-{fence}/{inner}");
    for key in [
        key("../../../../remuda.db"),
        key(".."),
        format!("outputs/{task}/../x/{attempt}-{fence}/y"),
        key("./a"),
    ] {
        let file = json!({"n": 0, "key": key, "filename": "x.png", "subfolder": "../..", "node_id": "2", "output": "images",
            "file_type": "output", "mime": "text/html", "size": 5, "sha256": "a".repeat(64)});
        let result = json!({"files": [file], "outputs": {}, "execution_ms": 1});
        let ending = json!({"how": "completed", "result": result, "gpu_ms": null});
        let body = json!({"lease": {"task": task, "fence": fence}, "ending": ending});
        let answer = thief.ask(SOMEBODY, Method::POST, "end", Some(body)).await?;
        if answer.is_success() {
            wrong.push(format!("a result with the file {key} was taken"));
            break;
        }
    }
    let cancel = thief.client.request(Method::DELETE, &format!("/api/v1/tasks/{task}"), &stage.keys.mallory);
    thief.client.send(cancel).await?;
    Ok(wrong)
}

/// Files below a folder with this in their names.
fn find(folder: &Path, part: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(find(&path, part));
        } else if entry.file_name().to_string_lossy().contains(part) {
            found.push(path.display().to_string());
        }
    }
    found
}

pub(crate) async fn hoard(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    // First, because a description is kept only for as long as a worker says that it has those nodes.
    let mut wrong = descriptions::hoard(&thief, &stage).await?;
    let mut refused = None;
    for n in 0..2_000 {
        let spec =
            json!({"id": format!("w{n}"), "endpoint": "http://127.0.0.1:9", "name": null, "labels": []});
        let answer = thief.ask(SOMEBODY, Method::POST, "acquire", Some(json!({"spec": spec}))).await?;
        if !answer.is_success() {
            refused = Some(answer);
            break;
        }
    }
    match refused {
        None => wrong.push("2,000 workers of one key were taken".to_owned()),
        Some(answer) if answer.status == 429 && answer.json()["limit"].is_string() => {}
        Some(answer) => wrong.push(format!("workers: {} {}", answer.status, answer.text())),
    }
    Ok(wrong)
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
