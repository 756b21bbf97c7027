//! Many small things that are each allowed, and what they cost together: at the next start, in a list, at one moment.

use crate::raw::Client;
use crate::stage::Stage;
use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::json;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How many requests are under way while something is stored.
const FILLING: usize = 32;
/// How many guests read at the same time.
const READERS: usize = 64;

/// Hands in this many prompts; how many were taken.
async fn fill(client: &Client, key: &str, count: usize) -> Result<usize> {
    let body =
        json!({"prompt": crate::probe::graph(1), "extra_data": {"extra_pnginfo": {"workflow": {"a": 1}}}});
    let body = Bytes::from(body.to_string());
    let sent = stream::iter(0..count).map(|_| client.post("/prompt", key, body.clone()));
    let answers: Vec<_> = sent.buffer_unordered(FILLING).collect().await;
    let taken = answers.iter().flatten().filter(|answer| answer.is_success()).count();
    anyhow::ensure!(taken > count / 2, "only {taken} prompts of {count} were taken");
    Ok(taken)
}

/// Prompts that have ended cost nothing at the next start, which follows every attack of this kind.
pub(crate) async fn restart(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = stage.keys.mallory.as_str();
    fill(&client, key, if stage.quick { 500 } else { 16_000 }).await?;
    let cleared = client.post("/queue", key, r#"{"clear": true}"#).await?;
    anyhow::ensure!(cleared.is_success(), "the queue is not cleared: {} {}", cleared.status, cleared.text());
    Ok(Vec::new())
}

/// Lists and numbers that take longer the more is stored, asked for without a pause.
pub(crate) async fn lists(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = stage.keys.mallory.as_str();
    let count = if stage.quick { 500 } else { 12_000 };
    fill(&client, key, count).await?;
    let paths = [
        "/prompt".to_owned(),
        format!("/api/jobs?limit=1&offset={}", count - 2),
        format!("/history?max_items=1&offset={}", count / 2),
        "/history?max_items=10000".to_owned(),
        "/queue".to_owned(),
    ];
    let deadline = Instant::now() + stage.while_it_lasts();
    let lanes = (0..READERS).map(|lane| {
        let (client, paths) = (&client, &paths);
        async move {
            let mut wrong = Vec::new();
            for path in paths.iter().cycle().skip(lane) {
                match client.get(path, key).await {
                    Ok(answer) if answer.status >= 500 && answer.status != 503 => {
                        wrong.push(format!("{path} is answered {} {}", answer.status, answer.text()));
                    }
                    // A refusal or a wait is a limit that works.
                    _ => {}
                }
                if Instant::now() > deadline || !wrong.is_empty() {
                    break;
                }
            }
            wrong
        }
    });
    let mut wrong = futures_util::future::join_all(lanes).await.concat();
    wrong.dedup();
    let cleared = client.post("/queue", key, r#"{"clear": true}"#).await?;
    anyhow::ensure!(cleared.is_success(), "the queue is not cleared: {} {}", cleared.status, cleared.text());
    Ok(wrong)
}

/// Tasks with as much beside them as is allowed, which all become due in the same moment: half of them to run, half of them to
/// expire.
pub(crate) async fn due(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = stage.keys.mallory.as_str();
    let count = if stage.quick { 200 } else { 4_000 };
    let lasts = stage.while_it_lasts();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?;
    let moment = (now + lasts).as_secs();
    let at = jiff::Timestamp::from_second(i64::try_from(moment)?)?.to_string();
    let metadata = json!({"text": "m".repeat(65_000)});
    let body = |field: &str| {
        // For no worker: what a render of them takes is another matter.
        let mut task = json!({"payload": crate::probe::graph(1), "metadata": metadata, "labels": ["nobody"]});
        task[field] = json!(at);
        Bytes::from(task.to_string())
    };
    let bodies = [body("not_before"), body("deadline")];
    let sent = stream::iter(0..count).map(|n| client.post("/api/v1/tasks", key, bodies[n % 2].clone()));
    let answers: Vec<_> = sent.buffer_unordered(FILLING).collect().await;
    let taken = answers.iter().flatten().filter(|answer| answer.is_success()).count();
    anyhow::ensure!(taken > 0, "no task was taken");
    let left = Duration::from_secs(moment)
        .saturating_sub(SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?);
    // And some seconds of what follows.
    tokio::time::sleep(left + Duration::from_secs(5)).await;
    Ok(Vec::new())
}
