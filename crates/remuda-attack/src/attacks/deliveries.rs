//! A stranger's word about a lease.

use super::workers::{FENCES, SOMEBODY, Thief};
use crate::raw::Answer;
use crate::stage::Stage;
use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::{Value, json};

/// Two of these fit into the outputs of one task (48 MiB in these installations), three do not.
const FILE: usize = 20 << 20;
/// What the stranger calls its process.
const STRANGER: &str = "5a5a5a5a-0000-4000-8000-000000000002";

/// A task that the attacker's own worker holds.
struct Held<'a> {
    thief: &'a Thief,
    stage: &'a Stage,
    task: String,
    fence: i64,
    attempt: i64,
}

impl<'a> Held<'a> {
    async fn claim(thief: &'a Thief, stage: &'a Stage) -> Result<Held<'a>> {
        let spec =
            json!({"id": "holder", "endpoint": "http://127.0.0.1:9", "name": null, "labels": ["holder"]});
        let acquired = thief.ask(SOMEBODY, Method::POST, "acquire", Some(json!({"spec": spec}))).await?;
        let fence = acquired.json()["worker"]["fence"].as_i64().context("a worker without a fence")?;
        let capabilities = json!({"labels": ["holder"], "nodes": ["RigProgress", "SaveImage"], "models": []});
        let claim = json!({"worker": "holder", "worker_fence": fence, "capabilities": capabilities,
            "wait_ms": 10_000});
        let body = json!({"payload": crate::probe::graph(5), "labels": ["holder"]});
        let (claimed, task) = tokio::join!(
            thief.ask(SOMEBODY, Method::POST, "claim", Some(claim)),
            thief.client.task(&stage.keys.mallory, &body)
        );
        let (claimed, task) = (claimed?, task?);
        let lease = claimed.json()["claim"]["lease"].clone();
        let fence = lease["fence"]
            .as_i64()
            .with_context(|| format!("nothing was claimed: {} {}", claimed.status, claimed.text()))?;
        Ok(Held { thief, stage, task, fence, attempt: lease["attempt"].as_i64().unwrap_or(1) })
    }

    async fn deliver(&self, n: usize) -> Result<Answer> {
        let (task, fence, attempt) = (&self.task, self.fence, self.attempt);
        let path = format!(
            "/api/v1/worker/tasks/{task}/outputs/{n}?fence={fence}&attempt={attempt}&filename={n}.png"
        );
        let request = self.thief.client.request(Method::PUT, &path, &self.stage.keys.worker);
        let request = request.header("remuda-owner", SOMEBODY).body(vec![7; FILE]);
        self.thief.client.send(request.header("content-type", "application/octet-stream")).await
    }

    /// Another key names the lease, under an id of its own and under the holder's.
    async fn disturbed(&self) -> Result<()> {
        for owner in [STRANGER, SOMEBODY] {
            let leases: Vec<Value> = FENCES
                .chain([self.fence])
                .map(|fence| json!({"lease": {"task": self.task, "fence": fence}, "phase": "collecting", "progress": 0.5}))
                .collect();
            let body = json!({"leases": leases, "workers": [], "wait_ms": 0}).to_string();
            let client = &self.thief.client;
            let request = client.request(Method::POST, "/api/v1/worker/beat", &self.stage.keys.sidecar);
            let request = request.header("remuda-owner", owner).header("content-type", "application/json");
            let answer = client.send(request.body(body)).await?;
            anyhow::ensure!(answer.is_success(), "a beat is answered {} {}", answer.status, answer.text());
        }
        Ok(())
    }
}

/// What a task has delivered counts against its bound, whatever another key says of its lease.
pub(crate) async fn forgotten(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let held = Held::claim(&thief, &stage).await?;
    let mut wrong = Vec::new();
    for n in 0..2 {
        let answer = held.deliver(n).await?;
        anyhow::ensure!(answer.is_success(), "a file is refused: {} {}", answer.status, answer.text());
    }
    held.disturbed().await?;
    match held.deliver(2).await {
        Ok(answer) if answer.is_success() => {
            wrong.push("after a stranger's beat a task delivers more than it may".to_owned());
        }
        Ok(answer) if matches!(answer.status, 413 | 422) => {}
        Ok(answer) => wrong.push(format!("a file too many: {} {}", answer.status, answer.text())),
        // Closed in the middle of a body that is not wanted.
        Err(_) => {}
    }
    // The holder is still the holder.
    let replaced = held.deliver(1).await?;
    if !replaced.is_success() {
        wrong.push(format!("the holder lost its lease: {} {}", replaced.status, replaced.text()));
    }
    let cancel =
        thief.client.request(Method::DELETE, &format!("/api/v1/tasks/{}", held.task), &stage.keys.mallory);
    thief.client.send(cancel).await?;
    Ok(wrong)
}
