//! The second tenant, who submits and reads all the time, and whoever looks whether the server lives.

use crate::judge::Spread;
use crate::stage::Stage;
use futures_util::{StreamExt, stream};
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(20);
/// Probes wait until long after the attack: what they cost is the door, not the render.
const LATER: &str = "2999-01-01T00:00:00Z";
/// How many tasks are cancelled at the same time.
const CANCELLED: usize = 8;
/// How long it may take until they have ended. A ComfyUI that went away with one of them is given up after a minute, and
/// nothing can confirm the cancellation before.
const ENDED: Duration = Duration::from_secs(90);

/// What a probe saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) times: Vec<Duration>,
    pub(crate) failed: usize,
    pub(crate) first_failure: Option<String>,
    /// A task that was taken.
    pub(crate) task: Option<String>,
}

impl Seen {
    pub(crate) fn spread(&self) -> Spread {
        Spread::of(&self.times)
    }

    fn fail(&mut self, why: String) {
        self.failed += 1;
        self.first_failure.get_or_insert(why);
    }
}

/// The second tenant and `/live`.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    http: reqwest::Client,
    stage: Stage,
}

impl Probe {
    /// Every request has a connection of its own: one that was made before the attack would prove nothing.
    pub(crate) fn new(stage: &Stage, patience: Duration) -> anyhow::Result<Probe> {
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).timeout(patience).build()?;
        Ok(Probe { http, stage: stage.clone() })
    }

    /// Submits and reads until it is stopped.
    pub(crate) async fn tenant(&self, stop: &CancellationToken) -> Seen {
        let mut seen = Seen::default();
        let mut n = 0;
        while !stop.is_cancelled() {
            let began = Instant::now();
            n += 1;
            match self.submit_and_get(n).await {
                Ok(task) => seen.task = Some(task),
                Err(why) => seen.fail(why),
            }
            seen.times.push(began.elapsed());
            tokio::time::sleep(PAUSE).await;
        }
        seen
    }

    /// Asks `/live` until it is stopped.
    pub(crate) async fn live(&self, stop: &CancellationToken) -> Seen {
        let mut seen = Seen::default();
        while !stop.is_cancelled() {
            let began = Instant::now();
            match self.http.get(self.stage.url("/live")).send().await {
                Ok(answer) if answer.status().is_success() => {}
                Ok(answer) => seen.fail(answer.status().to_string()),
                Err(error) => seen.fail(error.to_string()),
            }
            seen.times.push(began.elapsed());
            tokio::time::sleep(PAUSE * 5).await;
        }
        seen
    }

    async fn submit_and_get(&self, n: usize) -> Result<String, String> {
        let task = self.submit(&json!({"payload": graph(n), "not_before": LATER})).await?;
        self.get(&task).await?;
        Ok(task)
    }

    /// Submits as the second tenant; the id of the task.
    pub(crate) async fn submit(&self, body: &Value) -> Result<String, String> {
        let request =
            self.http.post(self.stage.url("/api/v1/tasks")).header(CONTENT_TYPE, "application/json");
        let view = self.send(request.body(body.to_string())).await?;
        view["id"].as_str().map(str::to_owned).ok_or_else(|| "a task without an id".to_owned())
    }

    /// One task of the second tenant.
    pub(crate) async fn get(&self, task: &str) -> Result<Value, String> {
        self.send(self.http.get(self.stage.url(&format!("/api/v1/tasks/{task}")))).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Value, String> {
        self.send_as(&self.stage.keys.bob, request).await
    }

    async fn send_as(&self, key: &str, request: reqwest::RequestBuilder) -> Result<Value, String> {
        let request = if key.is_empty() { request } else { request.bearer_auth(key) };
        let answer = request.send().await.map_err(|error| reason(&error))?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| reason(&error))?;
        if !status.is_success() {
            let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            return Err(format!("{status} {text}"));
        }
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    }

    /// Cancels everything of a tenant and waits until it has ended: what is still rendered keeps the ComfyUI from the
    /// second tenant. Refusals are not final: whoever used most is turned away for a while.
    pub(crate) async fn cancel_all(&self, key: &str) -> Result<(), String> {
        let deadline = Instant::now() + ENDED;
        let mut why = "it was not tried".to_owned();
        while Instant::now() < deadline {
            match self.cancel_some(key).await {
                Ok(0) => return Ok(()),
                Ok(left) => why = format!("{left} tasks or more have not ended"),
                Err(error) => why = error,
            }
            tokio::time::sleep(PAUSE * 5).await;
        }
        Err(format!("the attacker's own tasks cannot be cancelled within {} s: {why}", ENDED.as_secs()))
    }

    /// Cancels one page of what waits and one of what runs; how many tasks those were.
    async fn cancel_some(&self, key: &str) -> Result<usize, String> {
        let mut found = 0;
        for status in ["running", "pending"] {
            let url = self.stage.url(&format!("/api/v1/tasks?status={status}&limit=100"));
            let list = self.send_as(key, self.http.get(url)).await?;
            let ids = list["tasks"].as_array().into_iter().flatten().filter_map(|task| task["id"].as_str());
            let cancelled = stream::iter(ids).map(|id| {
                let url = self.stage.url(&format!("/api/v1/tasks/{id}"));
                async move { self.send_as(key, self.http.delete(url)).await }
            });
            let cancelled: Vec<_> = cancelled.buffer_unordered(CANCELLED).collect().await;
            found += cancelled.len();
            // One that has just ended by itself is what was wanted.
            let refused = cancelled.into_iter().filter_map(Result::err).find(|why| !why.starts_with("409"));
            if let Some(why) = refused {
                return Err(why);
            }
        }
        Ok(found)
    }

    /// Whether a task is set aside within this time, and its tenant is told of two deaths.
    pub(crate) async fn is_set_aside(&self, key: &str, task: &str, within: Duration) -> Result<(), String> {
        let deadline = Instant::now() + within;
        loop {
            let url = self.stage.url(&format!("/api/v1/tasks/{task}"));
            let why = match self.send_as(key, self.http.get(url)).await {
                Ok(view) if view["error_class"] == "harmful" => {
                    let harm = view["error_details"]["harm"].as_array().cloned().unwrap_or_default();
                    let deaths = harm.iter().filter(|harm| harm["kind"] == "death").count();
                    return match deaths {
                        2 => Ok(()),
                        deaths => Err(format!("task {task} was set aside after {deaths} deaths: {harm:?}")),
                    };
                }
                Ok(view) => format!("it is {}: {} {}", view["status"], view["error_class"], view["error"]),
                Err(why) => why,
            };
            if Instant::now() > deadline {
                return Err(format!("task {task} brought the server down twice and is not set aside: {why}"));
            }
            tokio::time::sleep(PAUSE * 5).await;
        }
    }

    /// The tasks of a tenant that were set aside.
    pub(crate) async fn set_aside(&self, key: &str) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        let mut page = String::new();
        loop {
            let url = self.stage.url(&format!("/api/v1/tasks?status=failed&limit=100{page}"));
            let list = self.send_as(key, self.http.get(url)).await?;
            let tasks = list["tasks"].as_array().into_iter().flatten();
            let harmful = tasks.filter(|task| task["error_class"] == "harmful");
            found.extend(harmful.filter_map(|task| task["id"].as_str()).map(str::to_owned));
            match list["next"].as_str() {
                Some(next) => page = format!("&before={next}"),
                None => return Ok(found),
            }
        }
    }

    /// Whether a plain task of the second tenant is rendered within this time.
    pub(crate) async fn renders(&self, within: Duration) -> Result<(), String> {
        let deadline = Instant::now() + within;
        let mut last = String::new();
        let mut task = None;
        while Instant::now() < deadline {
            let id = match &task {
                Some(id) => Ok(String::clone(id)),
                None => self.submit(&json!({"payload": graph(0)})).await,
            };
            match id {
                Ok(id) => {
                    match self.get(&id).await {
                        Ok(view) if view["status"] == "completed" => return Ok(()),
                        Ok(view) => {
                            last = format!("it is {}: {} {}", view["status"], view["reason"], view["error"])
                        }
                        Err(why) => last = why,
                    }
                    task = Some(id);
                }
                Err(why) => last = why,
            }
            tokio::time::sleep(PAUSE * 5).await;
        }
        Err(format!("a task of the second tenant is not rendered within {} s: {last}", within.as_secs()))
    }
}

/// A small graph that the simulator renders at once.
pub(crate) fn graph(seed: usize) -> Value {
    json!({
        "1": {"class_type": "RigProgress", "inputs":
            {"steps": 1, "step_ms": 1, "preview": "none", "preview_size": 16, "seed": seed}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "probe"}},
    })
}

fn reason(error: &reqwest::Error) -> String {
    match error.is_timeout() {
        true => "no answer in time".to_owned(),
        false => {
            let mut source: &dyn std::error::Error = error;
            while let Some(deeper) = source.source() {
                source = deeper;
            }
            source.to_string()
        }
    }
}
