//! Much that is the attacker's own and lawful, asked for or brought so often that others wait for it.

use super::memory::unread;
use super::workers::{SOMEBODY, Thief};
use crate::raw::{Answer, Client};
use crate::stage::Stage;
use anyhow::{Context, Result, ensure};
use futures_util::future::{join, join_all};
use futures_util::{StreamExt, stream};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const LATER: &str = "2999-01-01T00:00:00Z";
/// Uploads of the attacker, and how many requests ask for their names at the same time.
const UPLOADS: usize = 10_000;
const ASKING: usize = 400;
/// How many large settings are written at the same time, each as long as it may be.
const WRITERS: usize = 12;
const SETTING: usize = 15 << 20;
/// How long a task of 100 KiB of the second tenant may take meanwhile, half of them at least.
const MIDDLE: Duration = Duration::from_millis(250);
/// Workers of the attacker's key, with this many labels, each with this many bytes: more than there may be, and as much as there may be.
const WORKERS: usize = 256;
const LABELS: usize = 500;
const TOO_LONG: usize = 2_000;
const ALLOWED: usize = 26;
/// Attempts that fail with this many values.
const FAILURES: usize = 4;
const VALUES: usize = 147_000;
/// Streams and tasks that nobody reads.
const UNREAD: usize = 60;

/// Asks the same again and again while this lasts, and reads what comes.
async fn asks(stage: &Stage, path: &str, count: usize) -> Result<Vec<String>> {
    let client = Client::new(stage)?;
    let deadline = Instant::now() + stage.while_it_lasts();
    let asking = (0..count).map(|_| async {
        let mut wrong = None;
        while Instant::now() < deadline {
            match client.get(path, &stage.keys.mallory).await {
                Ok(Answer { status: 200 | 429 | 503, .. }) => {}
                Ok(answer) => wrong = Some(format!("{path} is answered {}", answer.status)),
                // Many wait for their turn longer than a client does.
                Err(_) => {}
            }
        }
        wrong
    });
    let mut wrong: Vec<String> = join_all(asking).await.into_iter().flatten().collect();
    wrong.dedup();
    Ok(wrong)
}

pub(crate) async fn files(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let count = if stage.quick { UPLOADS / 5 } else { UPLOADS };
    let made = stream::iter(0..count).map(|n| {
        let (client, key) = (&client, &stage.keys.mallory);
        async move {
            let path = format!("/api/v1/assets?filename={n:05}{}.png", "n".repeat(200));
            client.post(&path, key, n.to_string()).await.is_ok_and(|answer| answer.is_success())
        }
    });
    let made: Vec<bool> = made.buffer_unordered(8).collect().await;
    ensure!(made.into_iter().filter(|made| *made).count() > count / 2, "no uploads were taken");
    asks(&stage, "/internal/files/input", ASKING).await
}

/// The second tenant's tasks of 100 KiB, one after the other. How long each took.
async fn middle(stage: &Stage) -> Result<Vec<Duration>> {
    let http = reqwest::Client::builder().timeout(Duration::from_secs(30)).build()?;
    let mut graph = crate::probe::graph(1);
    graph["2"]["_meta"] = json!({"title": "b".repeat(100 << 10)});
    let body = json!({"payload": graph, "not_before": LATER}).to_string();
    let deadline = Instant::now() + stage.while_it_lasts();
    let mut took = Vec::new();
    while Instant::now() < deadline {
        let began = Instant::now();
        let request = http.post(stage.url("/api/v1/tasks")).header("content-type", "application/json");
        let answer = request.bearer_auth(&stage.keys.bob).body(body.clone()).send().await?;
        ensure!(answer.status().is_success(), "a task of 100 KiB is answered {}", answer.status());
        took.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(took)
}

pub(crate) async fn turns(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let body = bytes::Bytes::from(format!("\"{}\"", "z".repeat(SETTING)));
    let deadline = Instant::now() + stage.while_it_lasts();
    let writers = (0..WRITERS).map(|n| {
        let (client, key, body) = (&client, &stage.keys.mallory, &body);
        async move {
            while Instant::now() < deadline {
                let request = client.request(Method::POST, &format!("/settings/s{n}"), key);
                let request = request.header("content-type", "application/json").body(body.clone());
                // What is too much for one guest is refused: then it tries again.
                if !client.send(request).await.is_ok_and(|answer| answer.is_success()) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    });
    let (_, took) = join(join_all(writers), middle(&stage)).await;
    let mut took = took?;
    took.sort();
    let half = took.get(took.len() / 2).context("no task was sent")?;
    let late =
        || format!("half of the second tenant's tasks of 100 KiB took {} ms or more", half.as_millis());
    Ok((*half > MIDDLE).then(late).into_iter().collect())
}

/// A worker of the attacker's with these labels.
async fn register(thief: &Thief, name: &str, labels: Vec<String>) -> Result<Answer> {
    let spec = json!({"id": name, "endpoint": "http://127.0.0.1:9", "name": null, "labels": labels});
    thief.ask(SOMEBODY, Method::POST, "acquire", Some(json!({"spec": spec}))).await
}

pub(crate) async fn labels(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let labels = |n: usize, bytes: usize| -> Vec<String> {
        (0..LABELS).map(|k| format!("{n:04}-{k:06}-{}", "x".repeat(bytes - 12))).collect()
    };
    let (mut wrong, mut taken) = (Vec::new(), 0);
    for n in 0..WORKERS {
        let answer = register(&thief, &format!("labelled-{n}"), labels(n, TOO_LONG)).await?;
        if answer.status < 400 {
            wrong.push("a worker with a megabyte of labels is taken".to_owned());
        }
        let answer = register(&thief, &format!("labelled-{n}"), labels(n, ALLOWED)).await?;
        match answer.status {
            200 => taken += 1,
            429 => {}
            status => wrong.push(format!("a worker is answered {status} {}", answer.text())),
        }
    }
    ensure!(taken > 10, "only {taken} workers were taken");
    let (stats, list) = join(asks(&stage, "/system_stats", 12), asks(&stage, "/api/v1/workers", 4)).await;
    wrong.extend(stats?.into_iter().chain(list?));
    let answer = thief.client.get("/api/v1/workers", &stage.keys.mallory).await?;
    if answer.body.len() > 16 << 20 {
        wrong.push(format!("the list of workers has {} MiB", answer.body.len() >> 20));
    }
    wrong.dedup();
    Ok(wrong)
}

/// A task of the attacker's that failed this often, each time with as many values as could be said.
async fn failed(thief: &Thief, stage: &Stage) -> Result<String> {
    let mut fences = Vec::new();
    for n in 0..=FAILURES {
        // A task avoids the worker that it failed on: each attempt has another.
        let name = format!("failing-{n}");
        let answer = register(thief, &name, vec!["failing".to_owned()]).await?;
        let fence = answer.json()["worker"]["fence"].as_i64();
        fences
            .push((name, fence.with_context(|| format!("no worker: {} {}", answer.status, answer.text()))?));
    }
    let reports: Vec<Value> = (fences.iter())
        .map(|(name, fence)| json!({"id": name, "fence": fence, "report": {"health": "healthy"}}))
        .collect();
    let beat = json!({"workers": reports, "leases": [], "wait_ms": 0});
    thief.ask(SOMEBODY, Method::POST, "beat", Some(beat)).await?;
    let body = json!({"payload": crate::probe::graph(1), "labels": ["failing"]});
    let task = thief.client.task(&stage.keys.mallory, &body).await?;
    let details: Vec<Value> = (0..VALUES).map(|_| json!({"": 0})).collect();
    for (name, fence) in &fences[..FAILURES] {
        let capabilities =
            json!({"labels": ["failing"], "nodes": ["RigProgress", "SaveImage"], "models": []});
        let claim =
            json!({"worker": name, "worker_fence": fence, "capabilities": capabilities, "wait_ms": 8000});
        let claimed = thief.ask(SOMEBODY, Method::POST, "claim", Some(claim)).await?;
        let lease = &claimed.json()["claim"]["lease"];
        ensure!(lease["fence"].is_i64(), "nothing was claimed: {} {}", claimed.status, claimed.text());
        let failure = json!({"class": "lost", "message": "x", "node_id": null, "details": details});
        let ending = json!({"how": "failed", "failure": failure});
        let lease = json!({"task": lease["task"], "fence": lease["fence"]});
        let end = json!({"lease": lease, "ending": ending});
        let ended = thief.ask(SOMEBODY, Method::POST, "end", Some(end)).await?;
        ensure!(ended.is_success(), "an end is answered {} {}", ended.status, ended.text());
    }
    Ok(task)
}

pub(crate) async fn details(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let path = format!("/api/v1/tasks/{}", failed(&thief, &stage).await?);
    let events = format!("{path}/events");
    let (streams, tasks) = join(unread(&stage, &events, UNREAD), unread(&stage, &path, UNREAD)).await;
    streams.and(tasks)?;
    let answer = thief.client.get(&path, &stage.keys.mallory).await?;
    let too_much = || format!("{FAILURES} failures are told with {} KiB", answer.body.len() >> 10);
    Ok((answer.body.len() > (FAILURES + 1) * (300 << 10)).then(too_much).into_iter().collect())
}
