//! Lanes: tasks with equal requirements wait together, and whoever submits chooses how many different ones there are.

use crate::raw::{Answer, Client};
use crate::stage::Stage;
use anyhow::{Context, Result};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

/// How many requests fill the store at the same time.
const FILLING: usize = 16;
/// How many tasks are submitted, each for another lane.
const SUBMITTED: usize = 4_000;
/// How many ask for their place in the queue at the same time, and how often together.
const ASKING: usize = 8;
const ASKED: usize = 2_000;

/// A label nearly as long as 64 of them may be: 16 KiB together.
fn label(n: usize, place: usize) -> String {
    format!("{n:06}-{place:02}-{}", "x".repeat(240))
}

/// Labels that nobody has, another set each time, and then what comes before one of those tasks, again and again.
pub(crate) async fn labels(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = stage.keys.mallory.as_str();
    let body = |n: usize| {
        let labels: Vec<String> = (0..64).map(|place| label(n, place)).collect();
        json!({"payload": crate::probe::graph(n), "labels": labels})
    };
    let (mut wrong, first) = fill(&client, key, body).await?;
    let path = format!("/api/v1/tasks/{}", first.context("no task was taken")?);
    let asked = stream::iter(0..ASKED).map(|_| client.get(&path, key));
    let answers: Vec<Result<Answer>> = asked.buffer_unordered(ASKING).collect().await;
    wrong
        .extend(answers.into_iter().flatten().filter_map(|answer| unwanted("a place in the queue", &answer)));
    wrong.dedup();
    Ok(wrong)
}

/// Classes that every worker has, another subset each time: a worker could be served from all of these lanes.
pub(crate) async fn subsets(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = stage.keys.mallory.as_str();
    let info = client.get("/object_info", key).await?.json();
    let mut classes: Vec<String> =
        info.as_object().context("no description of nodes")?.keys().cloned().collect();
    classes.sort();
    let body = |n: usize| {
        let chosen = classes.iter().take(40).enumerate().filter(|(place, _)| (n + 1) >> place & 1 == 1);
        let chosen: Vec<&String> = chosen.map(|(_, class)| class).collect();
        json!({"payload": crate::probe::graph(n), "requires": {"nodes": chosen}, "priority": 0})
    };
    let (mut wrong, _) = fill(&client, key, body).await?;
    wrong.dedup();
    Ok(wrong)
}

/// What was answered as it should not be, and the first task that was taken. A limit is a good answer.
async fn fill(
    client: &Client,
    key: &str,
    body: impl Fn(usize) -> Value,
) -> Result<(Vec<String>, Option<String>)> {
    let bodies = (0..SUBMITTED).map(|n| body(n).to_string());
    let made = stream::iter(bodies).map(|body| client.post("/api/v1/tasks", key, body));
    let mut made = made.buffer_unordered(FILLING);
    let (mut wrong, mut first) = (Vec::new(), None);
    while let Some(answer) = made.next().await {
        let Ok(answer) = answer else { continue };
        wrong.extend(unwanted("a submission", &answer));
        if answer.is_success() && first.is_none() {
            first = answer.json()["id"].as_str().map(str::to_owned);
        }
    }
    Ok((wrong, first))
}

fn unwanted(what: &str, answer: &Answer) -> Option<String> {
    let fails = answer.status >= 500 && answer.status != 503;
    fails.then(|| format!("{what} is answered {} {}", answer.status, answer.text()))
}
