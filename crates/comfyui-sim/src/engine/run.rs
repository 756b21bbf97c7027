//! One execution as its nodes see it: time, progress, interruption, messages.

use super::client::Client;
use super::faults::PromptFaults;
use super::graph::Graph;
use super::{Dirs, Exception};
use crate::config::{Profile, SimConfig};
use crate::hub::{Hub, Outgoing};
use crate::json::{Json, dict};
use bytes::Bytes;
use indexmap::IndexMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Why a node did not give a result.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Raised {
    /// An ordinary exception: the prompt ends in an error.
    Exception(Exception),
    /// Somebody interrupted.
    Interrupted,
    /// `SystemExit`: the worker thread ends.
    WorkerEnds,
    /// `os._exit`: the process ends.
    ProcessEnds,
}

impl From<Exception> for Raised {
    fn from(exception: Exception) -> Self {
        Raised::Exception(exception)
    }
}

/// A picture to show while a node works.
pub(crate) struct Preview {
    /// An encoded JPEG, or else PNG.
    pub(crate) image: Vec<u8>,
    pub(crate) jpeg: bool,
}

/// How far a node is.
struct Progress {
    value: Json,
    max: Json,
    finished: bool,
    display: String,
    parent: Option<String>,
    real: String,
}

/// One execution of one prompt.
pub(crate) struct Run {
    pub(crate) prompt_id: String,
    pub(crate) config: Arc<SimConfig>,
    pub(crate) dirs: Dirs,
    pub(crate) faults: PromptFaults,
    /// Whether samplers show previews in this prompt.
    pub(crate) previews: bool,
    pub(super) client: Client,
    pub(super) hub: Arc<dyn Hub>,
    pub(super) interrupt: Arc<AtomicBool>,
    progress: Mutex<IndexMap<String, Progress>>,
    written: Mutex<Vec<PathBuf>>,
}

impl Run {
    pub(super) fn new(
        prompt_id: String,
        client: Client,
        faults: PromptFaults,
        previews: bool,
        engine: &super::Engine,
    ) -> Run {
        Run {
            prompt_id,
            config: engine.config.clone(),
            dirs: engine.dirs.clone(),
            faults,
            previews,
            client,
            hub: engine.hub.clone(),
            interrupt: engine.interrupt.clone(),
            progress: Mutex::default(),
            written: Mutex::default(),
        }
    }

    pub(crate) fn profile(&self) -> Profile {
        self.config.profile
    }

    /// Waits as long as a node blocks. Nothing interrupts it.
    pub(crate) async fn pause(&self, time: Duration) {
        if !time.is_zero() {
            tokio::time::sleep(self.stretched(time)).await;
        }
    }

    /// A duration under the slowness that was asked for.
    pub(crate) fn stretched(&self, time: Duration) -> Duration {
        let factor =
            self.faults.slow_factor.filter(|factor| factor.is_finite() && *factor >= 0.0).unwrap_or(1.0);
        Duration::try_from_secs_f64(time.as_secs_f64() * factor).unwrap_or(time)
    }

    /// Raises if somebody interrupted, and forgets it.
    pub(crate) fn check_interrupt(&self) -> Result<(), Raised> {
        if self.interrupt.swap(false, Ordering::SeqCst) { Err(Raised::Interrupted) } else { Ok(()) }
    }

    /// Notes a written file, in case it shall vanish.
    pub(crate) fn note_file(&self, path: PathBuf) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).push(path);
    }

    pub(super) fn written(&self) -> Vec<PathBuf> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A message for everybody: event 3, a text of a node.
    pub(crate) fn show_text(&self, node: &str, text: &str) {
        if self.profile() < Profile::V0_3_64 {
            return;
        }
        let mut payload = (node.len() as u32).to_be_bytes().to_vec();
        payload.extend_from_slice(node.as_bytes());
        payload.extend_from_slice(text.as_bytes());
        self.hub.send(Outgoing::Binary { event: 3, payload: payload.into() }, None);
    }

    /// A node begins.
    pub(super) fn start_progress(&self, node: &str, graph: &Graph) {
        self.set_progress(node, Json::Float(0.0), Json::Float(1.0), false, Some(graph));
    }

    /// A node is done: its value becomes its maximum, whatever that was.
    pub(super) fn finish_progress(&self, node: &str, graph: &Graph) {
        let max = {
            let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.get(node).map_or(Json::Int(1), |entry| entry.max.clone())
        };
        self.set_progress(node, max.clone(), max, true, Some(graph));
    }

    fn set_progress(&self, node: &str, value: Json, max: Json, finished: bool, graph: Option<&Graph>) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = progress.entry(node.to_owned()).or_insert_with(|| Progress {
            value: Json::Null,
            max: Json::Null,
            finished: false,
            display: graph.map_or(node, |graph| graph.display(node)).to_owned(),
            parent: graph.and_then(|graph| graph.parent(node)).map(str::to_owned),
            real: graph.map_or(node, |graph| graph.real(node)).to_owned(),
        });
        entry.value = value;
        entry.max = max;
        entry.finished = finished;
        if self.profile() < Profile::V0_3_64 {
            return;
        }
        let nodes = progress.iter().map(|(id, entry)| {
            let state = dict([
                ("value", entry.value.clone()),
                ("max", entry.max.clone()),
                ("state", if entry.finished { "finished" } else { "running" }.into()),
                ("node_id", id.into()),
                ("prompt_id", self.prompt_id.as_str().into()),
                ("display_node_id", entry.display.as_str().into()),
                ("parent_node_id", entry.parent.clone().into()),
                ("real_node_id", entry.real.as_str().into()),
            ]);
            (id.clone(), state)
        });
        let data =
            dict([("prompt_id", self.prompt_id.as_str().into()), ("nodes", Json::Dict(nodes.collect()))]);
        self.client.tell_or_all(&*self.hub, Outgoing::Text { event: "progress_state", data });
    }

    /// A step of a node, with a picture perhaps. Raises if somebody interrupted.
    pub(crate) fn step(
        &self,
        node: &str,
        value: u64,
        max: u64,
        preview: Option<Preview>,
    ) -> Result<(), Raised> {
        self.check_interrupt()?;
        self.set_progress(node, value.into(), max.into(), false, None);
        let with_metadata =
            self.profile() >= Profile::V0_3_64 && self.hub.supports_preview_metadata(self.client.name());
        if let Some(preview) = preview.as_ref().filter(|_| with_metadata) {
            let payload = self.described(node, preview);
            self.client.tell_or_all(&*self.hub, Outgoing::Binary { event: 4, payload });
        }
        let data = dict([
            ("value", value.into()),
            ("max", max.into()),
            ("prompt_id", self.prompt_id.as_str().into()),
            ("node", node.into()),
        ]);
        self.client.tell_or_all(&*self.hub, Outgoing::Text { event: "progress", data });
        if let Some(preview) = preview.filter(|_| !with_metadata) {
            let mut payload = if preview.jpeg { 1u32 } else { 2 }.to_be_bytes().to_vec();
            payload.extend_from_slice(&preview.image);
            self.client.tell_or_all(&*self.hub, Outgoing::Binary { event: 1, payload: payload.into() });
        }
        Ok(())
    }

    /// The payload of event 4: who shows it, then the picture.
    fn described(&self, node: &str, preview: &Preview) -> Bytes {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = progress.get(node);
        let metadata = dict([
            ("node_id", node.into()),
            ("prompt_id", self.prompt_id.as_str().into()),
            ("display_node_id", entry.map(|entry| entry.display.as_str()).into()),
            ("parent_node_id", entry.and_then(|entry| entry.parent.as_deref()).into()),
            ("real_node_id", entry.map(|entry| entry.real.as_str()).into()),
            ("image_type", if preview.jpeg { "image/jpeg" } else { "image/png" }.into()),
        ])
        .dump();
        let mut payload = (metadata.len() as u32).to_be_bytes().to_vec();
        payload.extend_from_slice(metadata.as_bytes());
        payload.extend_from_slice(&preview.image);
        payload.into()
    }
}

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
