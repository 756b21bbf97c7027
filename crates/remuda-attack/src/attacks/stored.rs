//! What is stored once and costs again each time somebody asks for it.

use super::memory::unread;
use crate::raw::Client;
use crate::stage::Stage;
use anyhow::{Context, Result};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use reqwest::Method;
use serde_json::{Value, json};

const LATER: &str = "2999-01-01T00:00:00Z";
/// How many requests fill the store at the same time.
const FILLING: usize = 16;

/// A graph of 30 MB that costs its worker nothing.
fn heavy() -> Value {
    let mut graph = crate::probe::graph(1);
    graph["2"]["_meta"] = json!({"title": "t".repeat(30 << 20)});
    graph
}

/// A task of 30 MB, ended by its own tenant.
async fn ended(client: &Client, key: &str) -> Result<String> {
    // For no worker: what a render of it takes is another attack.
    let body = json!({"payload": heavy(), "not_before": LATER, "labels": ["nobody"]});
    let task = client.task(key, &body).await?;
    let request = client.request(Method::DELETE, &format!("/api/v1/tasks/{task}"), key);
    let answer = client.send(request).await?;
    anyhow::ensure!(answer.is_success(), "a task cannot be cancelled: {} {}", answer.status, answer.text());
    Ok(task)
}

/// One after the other, so that each is taken: together they wait for the same worker.
pub(crate) async fn renders(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let body = bytes::Bytes::from(json!({"payload": heavy()}).to_string());
    let mut wrong = Vec::new();
    for _ in 0..8 {
        let request = client.request(Method::POST, "/api/v1/tasks", &stage.keys.mallory);
        let request = request.header("content-type", "application/json").body(body.clone());
        let answer = client.send(request).await?;
        if answer.status >= 500 && answer.status != 503 {
            wrong.push(format!("a task of 30 MB is answered {} {}", answer.status, answer.text()));
        }
    }
    wrong.dedup();
    Ok(wrong)
}

pub(crate) async fn retries(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = stage.keys.mallory.as_str();
    let path = format!("/api/v1/tasks/{}/retry", ended(&client, key).await?);
    let asked = (0..40).map(|_| client.post(&path, key, Vec::new()));
    let mut wrong = Vec::new();
    for answer in join_all(asked).await {
        match answer {
            Ok(answer) if answer.status >= 500 && answer.status != 503 => {
                wrong.push(format!("a retry is answered {} {}", answer.status, answer.text()));
            }
            Ok(_) => {}
            Err(error) => wrong.push(format!("a retry is not answered: {error}")),
        }
    }
    wrong.dedup();
    Ok(wrong)
}

/// Metadata as large as it may be: much text, or many values.
fn metadata(n: usize) -> Value {
    match n % 2 {
        0 => json!({"text": "m".repeat(65_000)}),
        _ => json!((0..1_900).map(|_| "value of thirty characters more").collect::<Vec<_>>()),
    }
}

pub(crate) async fn list(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let made = stream::iter(0..500).map(|n| {
        let body = json!({"payload": crate::probe::graph(n), "not_before": LATER, "metadata": metadata(n)});
        let (client, key) = (&client, &stage.keys.mallory);
        async move { client.task(key, &body).await }
    });
    let made: Vec<Result<String>> = made.buffer_unordered(FILLING).collect().await;
    let taken = made.iter().filter(|task| task.is_ok()).count();
    // A limit on waiting tasks would be fine; nothing at all would make the attack worthless.
    made.into_iter().find(|task| taken == 0 && task.is_err()).transpose()?;
    unread(&stage, "/api/v1/tasks?limit=500", 150).await?;
    Ok(Vec::new())
}

pub(crate) async fn documents(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = stage.keys.mallory.as_str();
    // As deep as a path may be, and deeper than anybody needs: every folder is a line of a list.
    let deep = |n: usize| format!("x%2F{n:06}%2F{}b", format!("{}%2F", "a".repeat(30)).repeat(29));
    let deeper = |n: usize| format!("x%2F{n:06}%2F{}b", "a%2F".repeat(505));
    let paths = (0..4_000).map(|n| if n % 8 == 0 { deeper(n) } else { deep(n) });
    let put = stream::iter(paths).map(|path| {
        let client = &client;
        async move { client.post(&format!("/userdata/{path}"), key, "1").await }
    });
    let put: Vec<_> = put.buffer_unordered(FILLING).collect().await;
    let taken = put.iter().flatten().filter(|answer| answer.is_success()).count();
    let first = put.into_iter().flatten().next().context("no answer at all")?;
    anyhow::ensure!(taken > 0, "no document was taken: {} {}", first.status, first.text());
    let lists = [
        "/v2/userdata?path=",
        "/v2/userdata?path=x",
        "/userdata?dir=x&recurse=true&full_info=true",
        "/userdata?dir=x&recurse=true&split=true",
    ];
    let asked = lists.iter().map(|path| unread(&stage, path, 20));
    join_all(asked).await.into_iter().collect::<Result<()>>()?;
    Ok(Vec::new())
}

/// The same few documents, as large as they may be, written again and again: never more is stored than is allowed.
pub(crate) async fn rewritten(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = stage.keys.mallory.as_str();
    let body = bytes::Bytes::from(vec![b'd'; 15 << 20]);
    let deadline = std::time::Instant::now() + stage.while_it_lasts();
    let writers = (0..4).map(|n| {
        let (client, body) = (&client, body.clone());
        async move {
            let (mut taken, mut wrong) = (0, Vec::new());
            while taken == 0 || std::time::Instant::now() < deadline {
                let path = format!("/userdata/large{n}?overwrite=true");
                let answer = client.send(client.request(Method::POST, &path, key).body(body.clone())).await?;
                match answer.status {
                    200..=299 => taken += 1,
                    429 | 503 => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
                    status => {
                        wrong.push(format!("a document of 15 MiB is answered {status} {}", answer.text()));
                        break;
                    }
                }
            }
            anyhow::Ok(wrong)
        }
    });
    let mut wrong = Vec::new();
    for found in join_all(writers).await {
        wrong.extend(found?);
    }
    wrong.dedup();
    Ok(wrong)
}
