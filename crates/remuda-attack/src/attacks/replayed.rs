//! A task that left as much as a task may, asked for again and again by those who submit and cancel.

use crate::raw::Client;
use crate::stage::Stage;
use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How many nodes show the same text, and how many bytes it has: 48 MiB in all.
const SHOWN: usize = 192;
const TEXT: usize = 256 << 10;
/// How many repeat what they said at the same time.
const REPEATING: usize = 24;
/// How long the task may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A small task that leaves much.
fn task() -> String {
    let show =
        |n: usize| (n.to_string(), json!({"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}}));
    let mut graph: serde_json::Map<String, Value> = (2..SHOWN + 2).map(show).collect();
    let text = json!({"class_type": "PrimitiveString", "inputs": {"value": "r".repeat(TEXT)}});
    graph.insert("1".to_owned(), text);
    json!({"payload": graph}).to_string()
}

/// The same submission each time. What is answered is not read.
async fn submit(client: &Client, stage: &Stage, body: &str) -> Result<Response> {
    let request = client.request(Method::POST, "/api/v1/tasks", &stage.keys.mallory);
    let request = request.header("content-type", "application/json").header("idempotency-key", "replayed");
    Ok(request.body(body.to_owned()).send().await?)
}

/// Submits the task and waits until it has ended, and left what it should.
async fn ended(client: &Client, stage: &Stage, body: &str) -> Result<String> {
    let submitted = submit(client, stage, body).await?;
    ensure!(submitted.status().is_success(), "a task is answered {}", submitted.status());
    let submitted: Value = serde_json::from_slice(&submitted.bytes().await?)?;
    let id = submitted["id"].as_str().context("a task without an id")?.to_owned();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = client.get(&format!("/api/v1/tasks/{id}"), &stage.keys.mallory).await?;
        if answer.body.len() > SHOWN * TEXT {
            return Ok(id);
        }
        let so_far = || String::from_utf8_lossy(&answer.body[..answer.body.len().min(300)]).into_owned();
        ensure!(Instant::now() < deadline, "the task leaves no result: {}", so_far());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

pub(crate) async fn results(stage: Stage) -> Result<Vec<String>> {
    let (client, body) = (Client::new(&stage)?, task());
    let path = format!("/api/v1/tasks/{}", ended(&client, &stage, &body).await?);
    let deadline = Instant::now() + stage.while_it_lasts();
    let repeating = (0..REPEATING).map(|n| {
        let (client, stage, body, path) = (&client, &stage, &body, &path);
        async move {
            let mut wrong = Vec::new();
            while Instant::now() < deadline {
                let sent = if n % 2 == 0 {
                    submit(client, stage, body).await
                } else {
                    let cancel = client.request(Method::DELETE, path, &stage.keys.mallory).send();
                    cancel.await.map_err(anyhow::Error::from)
                };
                match sent.map(|answer| answer.status().as_u16()) {
                    Ok(200 | 409) => {}
                    Ok(429 | 503) => tokio::time::sleep(Duration::from_millis(100)).await,
                    Ok(status) => wrong.push(format!("a repetition is answered {status}")),
                    // Many wait for their turn longer than a client does.
                    Err(_) => {}
                }
            }
            wrong
        }
    });
    let mut wrong = join_all(repeating).await.concat();
    wrong.dedup();
    Ok(wrong)
}
