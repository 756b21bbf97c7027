//! The engine as a whole, with a hub that only listens.

mod anything;
mod behaviour;
mod damage;

use super::{Answer, Dirs, Engine, ExecutionFaults, PromptFaults};
use crate::config::{Profile, SimConfig};
use crate::hub::{Hub, Outgoing};
use crate::json::Json;
use crate::stats::Executions;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Keeps everything that is sent, as `recipient event details`.
#[derive(Default)]
struct Ear(Mutex<Vec<String>>);

impl Hub for Ear {
    fn send(&self, message: Outgoing, to: Option<&str>) {
        let text = match message {
            Outgoing::Text { event: "status", data } => {
                let info = data.get("status").and_then(|status| status.get("exec_info")).unwrap();
                format!("status {}", info.get("queue_remaining").unwrap())
            }
            Outgoing::Text { event: "progress_state", data } => {
                let nodes = data.get("nodes").unwrap().as_dict().unwrap();
                let (id, state) = nodes.last().unwrap();
                format!("state {id} {} {}", state.get("value").unwrap(), state.get("state").unwrap().str())
            }
            Outgoing::Text { event, data } => {
                let node = data.get("node").or(data.get("node_id")).map(Json::str).unwrap_or_default();
                let rest =
                    ["nodes", "output", "exception_type", "value"].iter().find_map(|key| data.get(key));
                format!("{event} {node} {}", rest.map(Json::dump).unwrap_or_default()).trim().to_owned()
            }
            Outgoing::Binary { event, .. } => format!("binary {event}"),
            Outgoing::Unserializable => "unserializable".to_owned(),
            Outgoing::Unaddressable => "unaddressable".to_owned(),
        };
        self.0.lock().unwrap().push(format!("{}: {text}", to.unwrap_or("*")));
    }

    fn supports_preview_metadata(&self, client: Option<&str>) -> bool {
        client == Some("flagged")
    }
}

#[derive(Default)]
struct Once(Mutex<PromptFaults>);

impl ExecutionFaults for Once {
    fn for_prompt(&self, _prompt_id: &str) -> PromptFaults {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

struct Rig {
    engine: Arc<Engine>,
    ear: Arc<Ear>,
    faults: Arc<Once>,
    executions: Arc<Executions>,
    base: TempDir,
    worker: JoinHandle<()>,
}

impl Rig {
    fn new(profile: Profile) -> Rig {
        let base = tempfile::tempdir().unwrap();
        let dirs = Dirs::below(base.path());
        for dir in [&dirs.input, &dirs.output, &dirs.temp, &dirs.user] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let zero = Duration::ZERO;
        let config =
            SimConfig { profile, step: zero, model_load: zero, history_gap: zero, ..SimConfig::default() };
        let (ear, faults, executions) = (Arc::<Ear>::default(), Arc::<Once>::default(), Arc::default());
        let (engine, work) =
            Engine::start(Arc::new(config), dirs, ear.clone(), faults.clone(), Arc::clone(&executions));
        Rig { engine, ear, faults, executions, base, worker: tokio::spawn(work) }
    }

    /// The classes of its version, to build graphs from.
    fn registry(&self) -> Arc<crate::nodes::Registry> {
        let dirs = Dirs::below(self.base.path());
        Arc::new(crate::nodes::Registry::new(self.engine.config.clone(), &dirs))
    }

    fn submit(&self, body: &str) -> (u16, Json) {
        match self.engine.submit(&body.parse().unwrap()) {
            Answer::Json(status, body) => (status, body),
            Answer::Empty(status) => (status, Json::Null),
            Answer::Trouble => (500, Json::Null),
        }
    }

    /// Waits until something is true of the engine.
    async fn until(&self, what: &str, mut is_true: impl FnMut(&Rig) -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while !is_true(self) {
            assert!(tokio::time::Instant::now() < deadline, "{what}: {:#?}", self.ear.0.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Submits, waits for the history entry, and returns it with the messages in between.
    async fn run(&self, body: &str) -> (Json, Vec<String>) {
        self.ear.0.lock().unwrap().clear();
        let (status, answer) = self.submit(body);
        assert_eq!(status, 200, "{answer}");
        let id = answer.get("prompt_id").unwrap().str();
        self.until("no end", |rig| rig.history(&id).is_some() && rig.engine.queue_remaining() == 0).await;
        // The last message follows the history entry.
        let owned = body.contains("client_id");
        self.until("no last message", |rig| {
            !owned || rig.ear.0.lock().unwrap().last().is_some_and(|last| last.ends_with("executing None"))
        })
        .await;
        (self.history(&id).unwrap(), std::mem::take(&mut *self.ear.0.lock().unwrap()))
    }

    fn history(&self, id: &str) -> Option<Json> {
        match self.engine.history_one(id) {
            Answer::Json(_, body) => body.get(id).cloned(),
            _ => None,
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

fn at<'a>(value: &'a Json, path: &str) -> &'a Json {
    path.split('/').fold(value, |value, step| match value {
        Json::List(values) => match step.parse::<usize>() {
            Ok(index) => &values[index],
            Err(_) => values.last().unwrap(),
        },
        other => other.get(step).unwrap_or_else(|| panic!("no {step} in {other}")),
    })
}
