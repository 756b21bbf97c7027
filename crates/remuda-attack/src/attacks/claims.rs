//! What a key of the scope worker may ask for as often as it likes: claims and beats that wait, and leases to take over.

use super::workers::{SOMEBODY, Thief};
use crate::raw::{Answer, answer_to, connect, head};
use crate::stage::Stage;
use anyhow::{Context, Result, bail, ensure};
use futures_util::{StreamExt, stream};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// The attacker's worker, and the label that its tasks ask for: no other worker has it.
const WORKER: &str = "hoarder";
/// As long as a request may wait.
const WAIT_MS: u64 = 25_000;
/// Claims that wait at once.
const CLAIMS: usize = 4_000;
/// Numbers of what is loaded in each of them.
const LOADED: i64 = 10_000;
/// How often one lease, or one worker, is named in a beat.
const NAMED: usize = 20_000;
/// Beats that wait at once.
const BEATS: usize = 120;
/// Tasks that are taken over together, each with this many bytes of graph.
const TASKS: usize = 30;
const GRAPH: usize = 15 << 20;
/// How many answers are looked at.
const LOOKED_AT: usize = 200;
/// How many requests are sent at the same time.
const TOGETHER: usize = 32;

/// A worker of the attacker's own.
struct Hoarder {
    thief: Thief,
    stage: Stage,
    fence: i64,
}

impl Hoarder {
    async fn new(stage: Stage) -> Result<Hoarder> {
        let thief = Thief::new(&stage)?;
        let spec = json!({"id": WORKER, "endpoint": "http://127.0.0.1:9", "name": null, "labels": [WORKER]});
        let acquired = thief.ask(SOMEBODY, Method::POST, "acquire", Some(json!({"spec": spec}))).await?;
        let fence = acquired.json()["worker"]["fence"].as_i64();
        let fence = fence.with_context(|| format!("no worker: {} {}", acquired.status, acquired.text()))?;
        Ok(Hoarder { thief, stage, fence })
    }

    async fn say(&self, path: &str, body: Value) -> Result<Answer> {
        self.thief.ask(SOMEBODY, Method::POST, path, Some(body)).await
    }

    fn claim(&self, wait_ms: u64) -> Value {
        let capabilities = json!({"labels": [WORKER], "nodes": ["RigProgress", "SaveImage"], "models": []});
        json!({"worker": WORKER, "worker_fence": self.fence, "capabilities": capabilities, "wait_ms": wait_ms})
    }

    /// A task with a graph of about this many bytes, submitted for this worker and claimed by it. The lease.
    async fn hold(&self, bytes: usize) -> Result<Value> {
        let mut graph = crate::probe::graph(5);
        graph["2"]["_meta"] = json!({"title": "t".repeat(bytes)});
        let body = json!({"payload": graph, "labels": [WORKER]});
        // A submission as large as this waits its turn, and is told to ask again while others are read.
        let deadline = Instant::now() + Duration::from_secs(20);
        while let Err(error) = self.thief.client.task(&self.stage.keys.mallory, &body).await {
            if Instant::now() > deadline {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let claimed = self.say("claim", self.claim(10_000)).await?;
        let lease = &claimed.json()["claim"]["lease"];
        ensure!(lease["fence"].is_i64(), "nothing was claimed: {} {}", claimed.status, claimed.text());
        Ok(json!({"task": lease["task"], "fence": lease["fence"]}))
    }

    /// Gives back what it holds: a lease that nobody renews would keep its task until it runs out, and the aftermath waiting.
    async fn let_go(&self, leases: &[Value]) -> Result<()> {
        for lease in leases {
            let answer = self.say("give-back", json!({"lease": lease, "learnt": null})).await?;
            ensure!(answer.is_success(), "a task is not taken back: {} {}", answer.status, answer.text());
        }
        Ok(())
    }

    /// Sends a request and does not read its answer.
    async fn park(&self, path: &str, body: &[u8]) -> Result<TcpStream> {
        let length = body.len().to_string();
        let more =
            [("remuda-owner", SOMEBODY), ("content-type", "application/json"), ("content-length", &length)];
        let path = format!("/api/v1/worker/{path}");
        let head = head("POST", &path, &self.stage.server, &self.stage.keys.worker, &more);
        let mut stream = connect(&self.stage.server).await?;
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        Ok(stream)
    }

    /// As many of one request as can be sent while this lasts. Fails if they were refused instead of taken.
    async fn park_all(&self, path: &str, body: &[u8], count: usize) -> Result<()> {
        let deadline = Instant::now() + self.stage.while_it_lasts().max(Duration::from_secs(5));
        let parked = stream::iter(0..count).map(|_| self.park(path, body)).buffer_unordered(TOGETHER);
        let parked: Vec<TcpStream> = parked
            .filter_map(async |parked| parked.ok())
            .take_until(tokio::time::sleep_until(deadline.into()))
            .collect()
            .await;
        ensure!(parked.len() > count / 10, "only {} of {count} requests could be sent", parked.len());
        tokio::time::sleep_until(deadline.into()).await;
        let (looked_at, mut turned_away) = (parked.len().min(LOOKED_AT), 0);
        for mut stream in parked.into_iter().take(looked_at) {
            // One that still waits says nothing.
            let answer = answer_to(&mut stream, b"", Duration::from_millis(20)).await;
            let Ok((status, text)) = answer else { continue };
            match status {
                200..300 => {}
                429 | 503 => turned_away += 1,
                _ => bail!("a {path} is answered {status} {}", text.lines().last().unwrap_or_default()),
            }
        }
        // A server may defend itself so, but then this was not tried.
        ensure!(2 * turned_away < looked_at, "{turned_away} of {looked_at} were turned away at the door");
        Ok(())
    }
}

pub(crate) async fn parked(stage: Stage) -> Result<Vec<String>> {
    let hoarder = Hoarder::new(stage).await?;
    let mut body = hoarder.claim(WAIT_MS);
    body["loaded"] = (0..LOADED).map(|n| n + LOADED).collect();
    // The first of them must be one that the server takes.
    let mut once = body.clone();
    once["wait_ms"] = json!(0);
    let answer = hoarder.say("claim", once).await?;
    ensure!(answer.status == 204, "a claim is answered {} {}", answer.status, answer.text());
    hoarder.park_all("claim", body.to_string().as_bytes(), CLAIMS).await?;
    Ok(Vec::new())
}

pub(crate) async fn doubled(stage: Stage) -> Result<Vec<String>> {
    let hoarder = Hoarder::new(stage).await?;
    let lease = hoarder.hold(0).await?;
    let worker = json!({"id": WORKER, "fence": hoarder.fence, "report": {"health": "healthy"}});
    let workers = json!({"leases": [], "workers": vec![worker; NAMED], "wait_ms": 0});
    let mut wrong = Vec::new();
    let deadline = Instant::now() + hoarder.stage.while_it_lasts();
    loop {
        let answers = stream::iter(0..4).map(|_| hoarder.say("beat", workers.clone())).buffer_unordered(4);
        for answer in answers.collect::<Vec<_>>().await {
            let answer = answer?;
            if !answer.is_success() && answer.status != 429 && answer.status != 503 {
                bail!("a beat is answered {} {}", answer.status, answer.text());
            }
            let lost = answer.json()["lost_workers"].as_array().map_or(0, Vec::len);
            if lost > 0 {
                wrong.push("the attacker's own worker was lost".to_owned());
            }
        }
        if Instant::now() > deadline {
            break;
        }
    }
    let beat = json!({"lease": &lease, "phase": "placing", "progress": 0});
    let once = json!({"leases": [&beat], "workers": [], "wait_ms": 0});
    let answer = hoarder.say("beat", once).await?;
    let lost = answer.json()["lost"].as_array().map_or(1, Vec::len);
    ensure!(answer.is_success() && lost == 0, "the lease is lost: {} {}", answer.status, answer.text());
    let many = json!({"leases": vec![beat; NAMED], "workers": [], "wait_ms": WAIT_MS}).to_string();
    hoarder.park_all("beat", many.as_bytes(), BEATS).await?;
    hoarder.let_go(&[lease]).await?;
    wrong.dedup();
    Ok(wrong)
}

pub(crate) async fn adopted(stage: Stage) -> Result<Vec<String>> {
    let quick = stage.quick;
    let hoarder = Hoarder::new(stage).await?;
    let tasks = if quick { TASKS / 5 } else { TASKS };
    for _ in 0..tasks {
        hoarder.hold(GRAPH).await?;
    }
    let body = json!({"worker": WORKER, "worker_fence": hoarder.fence, "known": []});
    let mut wrong = Vec::new();
    // As somebody would who has forgotten everything, and asks several times at once.
    for _ in 0..3 {
        let answers = stream::iter(0..4).map(|_| hoarder.say("adopt", body.clone())).buffer_unordered(4);
        for answer in answers.collect::<Vec<_>>().await {
            let answer = answer?;
            if answer.status == 429 || answer.status == 503 {
                continue;
            }
            let claims = answer.json()["claims"].as_array().map_or(0, Vec::len);
            ensure!(
                answer.is_success() && claims > 0,
                "nothing is adopted: {} {}",
                answer.status,
                answer.text()
            );
            if answer.body.len() > 3 * GRAPH {
                wrong.push(format!("{claims} tasks with {} MiB in one answer", answer.body.len() >> 20));
            }
        }
    }
    // Asked for one after the other all of them come, each once.
    let mut known: Vec<Value> = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let body = json!({"worker": WORKER, "worker_fence": hoarder.fence, "known": known});
        let answer = hoarder.say("adopt", body).await?;
        if answer.status == 429 || answer.status == 503 {
            ensure!(
                Instant::now() < deadline,
                "no adoption came through: {} {}",
                answer.status,
                answer.text()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        }
        let found = answer.json();
        let claims = found["claims"].as_array().context("an adoption without claims")?;
        if claims.is_empty() {
            break;
        }
        let lease = |claim: &Value| json!({"task": claim["lease"]["task"], "fence": claim["lease"]["fence"]});
        known.extend(claims.iter().map(lease));
        ensure!(known.len() <= tasks, "more was adopted than there is");
    }
    if known.len() != tasks {
        wrong.push(format!("{} of {tasks} tasks were adopted", known.len()));
    }
    hoarder.let_go(&known).await?;
    wrong.dedup();
    Ok(wrong)
}
