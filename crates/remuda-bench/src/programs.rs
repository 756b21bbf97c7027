//! The programs that are measured, each in a process of its own: `remuda sim` and `remuda serve`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use remuda_testbed::net::free_port;
use remuda_testbed::process::Program;
use remuda_testbed::wait;
use serde_json::{Value, json};

const STARTED: Duration = Duration::from_secs(30);
const NOTHING: [(&str, &str); 0] = [];

/// A program built together with this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let program = own.parent().unwrap_or(Path::new(".")).join(name);
    ensure!(
        program.is_file(),
        "{} is not built; `cargo xtask bench` builds everything first",
        program.display()
    );
    Ok(program)
}

/// A simulated ComfyUI whose nodes take no time.
#[derive(Debug)]
pub(crate) struct Sim {
    /// Ends with this value.
    _program: Program,
    pub(crate) url: String,
    pub(crate) folder: PathBuf,
    http: reqwest::Client,
}

impl Sim {
    pub(crate) async fn start(folder: &Path) -> Result<Sim> {
        std::fs::create_dir_all(folder)?;
        let dir = folder.display().to_string();
        let arguments = [
            "sim",
            "--listen",
            "127.0.0.1:0",
            "--step-ms",
            "0",
            "--model-load-ms",
            "0",
            "--json",
            "--dir",
            &dir,
        ];
        let mut program = Program::start(beside("remuda")?, arguments, NOTHING)?;
        let line = program.wait_line("\"url\"", STARTED).await?;
        let said: Value = serde_json::from_str(&line)?;
        let url = said["url"].as_str().context("the simulator did not say where it is")?.to_owned();
        Ok(Sim { _program: program, url, folder: folder.to_owned(), http: reqwest::Client::new() })
    }

    /// When each prompt was executed: its id, beginning and end, in milliseconds on the simulator's clock.
    pub(crate) async fn timeline(&self) -> Result<Vec<(String, f64, f64)>> {
        let answer = self.http.get(format!("{}/sim/timeline", self.url)).send().await?.error_for_status()?;
        let answer: Value = serde_json::from_slice(&answer.bytes().await?)?;
        let spans = answer["executions"].as_array().context("the simulator told no times")?.iter();
        let span = |span: &Value| {
            let id = span["prompt_id"].as_str()?.to_owned();
            Some((id, span["began_us"].as_f64()? / 1e3, span["ended_us"].as_f64()? / 1e3))
        };
        spans.map(span).collect::<Option<_>>().context("the simulator told no times")
    }

    /// Lets something go wrong.
    pub(crate) async fn fault(&self, fault: &Value) -> Result<()> {
        let request = self.http.post(format!("{}/sim/faults", self.url)).body(fault.to_string());
        request.send().await?.error_for_status()?;
        Ok(())
    }

    /// Lets nothing go wrong any more.
    pub(crate) async fn heal(&self) -> Result<()> {
        self.http.delete(format!("{}/sim/faults", self.url)).send().await?.error_for_status()?;
        Ok(())
    }
}

/// `remuda serve`.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) program: Program,
    pub(crate) url: String,
    /// From the start of the process until `/ready` said yes.
    pub(crate) ready: Duration,
    pub(crate) http: reqwest::Client,
}

impl Server {
    /// Starts it on a data directory, with these ComfyUIs, and waits until it is ready.
    pub(crate) async fn start(data: &Path, store: Option<&str>, comfyui: &[&str]) -> Result<Server> {
        Self::start_as(&beside("remuda")?, data, store, comfyui).await
    }

    /// The same with another build of the program.
    pub(crate) async fn start_as(
        program: &Path,
        data: &Path,
        store: Option<&str>,
        comfyui: &[&str],
    ) -> Result<Server> {
        let http = reqwest::Client::new();
        let address = format!("127.0.0.1:{}", free_port()?);
        let mut arguments = vec!["serve".to_owned(), "--listen".to_owned(), address.clone()];
        arguments.extend(["--data".to_owned(), data.display().to_string()]);
        arguments.extend(store.into_iter().flat_map(|store| ["--store".to_owned(), store.to_owned()]));
        arguments.extend(comfyui.iter().flat_map(|url| ["--comfyui".to_owned(), (*url).to_owned()]));
        let url = format!("http://{address}");
        let begun = Instant::now();
        let mut program = Program::start(program, arguments, NOTHING)?;
        let ready = loop {
            let answer = http.get(format!("{url}/ready")).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                break begun.elapsed();
            }
            let ended = program.exited()?;
            ensure!(ended.is_none(), "remuda serve ended: {}", program.output().join("\n"));
            ensure!(begun.elapsed() < STARTED, "remuda serve is not ready: {}", program.output().join("\n"));
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        Ok(Server { program, url, ready, http })
    }

    /// Waits until a worker can take tasks.
    pub(crate) async fn idle_worker(&self) -> Result<()> {
        let idle = wait::until("an idle worker", STARTED, async || {
            let workers = self.get("api/v1/workers").await.map_err(|error| error.to_string())?;
            let text = workers.to_string();
            if text.contains("\"idle\"") { Ok(()) } else { Err(text) }
        });
        Ok(idle.await?)
    }

    /// Submits a workflow. With `wait`, the answer comes when the task has ended.
    pub(crate) async fn submit(&self, workflow: &Value, wait: bool) -> Result<Value> {
        let mut request = self.http.post(format!("{}/api/v1/tasks", self.url));
        if wait {
            request = request.header("prefer", "wait=60");
        }
        let body = json!({"payload": workflow}).to_string();
        let answer = request.header("content-type", "application/json").body(body).send().await?;
        let status = answer.status();
        let body = answer.text().await?;
        ensure!(status.is_success(), "a task was refused with {status}: {body}");
        let task: Value = serde_json::from_str(&body)?;
        ensure!(!wait || task["status"] == "completed", "a task did not complete: {task}");
        Ok(task)
    }

    /// Waits until a task has ended well.
    pub(crate) async fn ended(&self, id: &str, within: Duration) -> Result<Value> {
        let path = format!("api/v1/tasks/{id}");
        let ended = wait::until("the end of a task", within, async || {
            let task = self.get(&path).await.map_err(|error| error.to_string())?;
            if task["completed_at"].is_null() { Err(task.to_string()) } else { Ok(task) }
        });
        let task = ended.await?;
        ensure!(task["status"] == "completed", "a task did not complete: {task}");
        Ok(task)
    }

    /// Fetches a file and throws it away; `look` is told how much has come. The size.
    pub(crate) async fn download(&self, path: &str, mut look: impl FnMut(u64) -> Result<()>) -> Result<u64> {
        let url = reqwest::Url::parse(&self.url)?.join(path)?;
        let mut answer = self.http.get(url).send().await?.error_for_status()?;
        let mut received = 0;
        while let Some(piece) = answer.chunk().await? {
            received += piece.len() as u64;
            look(received)?;
        }
        Ok(received)
    }

    /// What a `GET` of something says.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        let answer = self.http.get(format!("{}/{path}", self.url)).send().await?.error_for_status()?;
        Ok(serde_json::from_slice(&answer.bytes().await?)?)
    }

    /// How many tasks wait.
    pub(crate) async fn waiting(&self) -> Result<u64> {
        let metrics = self.get("api/v1/queue/metrics").await?;
        metrics["pending_tasks"].as_u64().with_context(|| format!("no number of waiting tasks in {metrics}"))
    }

    /// Memory in use, in MB.
    pub(crate) fn resident_mb(&self) -> Result<f64> {
        Ok(self.program.rss_bytes()? as f64 / 1e6)
    }

    /// Ends it as a service manager does.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.program.term()?;
        self.program.wait_exit(Duration::from_secs(60)).await?;
        Ok(())
    }
}
