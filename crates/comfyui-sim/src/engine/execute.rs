//! One prompt from `execution_start` to its end: the order of messages is that of the recordings.

mod failure;

use super::cache::{Cache, Entry, Signer, Ui};
use super::client::Client;
use super::graph::{Graph, as_link, pick};
use super::python::Exception;
use super::queue::Item;
use super::run::{Raised, Run, now_ms};
use super::schedule::{Next, Schedule};
use super::{Ending, Engine, Outcome};
use crate::config::Profile;
use crate::hub::Outgoing;
use crate::json::{Json, dict};
use crate::nodes::{self, Call, Memory, Returned, Value};
use indexmap::IndexMap;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the worker keeps from one prompt to the next.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) cache: Cache,
    pub(super) memory: Memory,
    /// How the last node ended; a cycle found at run time leaves it as it was.
    pub(super) success: bool,
    pub(super) runs: u64,
}

/// What became of one turn of a node.
enum Turn {
    /// It has its results.
    Done,
    /// It will have another turn.
    Pending,
}

/// Why a prompt ends before its last node.
enum Failure {
    /// It is in the messages why.
    Told,
    WorkerDies,
    ProcessEnds,
}

/// One prompt being executed.
struct Execution<'a> {
    engine: &'a Engine,
    run: &'a Run,
    kept: &'a mut Kept,
    png_info: Json,
    graph: Graph,
    schedule: Schedule,
    /// Links to the results of nodes that expanded.
    expanded: HashMap<String, Vec<Json>>,
    /// Results of asynchronous nodes that are not done yet.
    pending: IndexMap<String, Returned>,
    uis: IndexMap<String, Ui>,
    executed: Vec<String>,
    messages: Vec<Json>,
    /// Whether some node was executed, for faults that strike the first one.
    begun: bool,
}

/// Executes a prompt.
pub(super) async fn execute(engine: &Engine, kept: &mut Kept, item: &Arc<Item>, run: &Run) -> Ending {
    engine.interrupt.store(false, Ordering::SeqCst);
    engine.now_serving(run.client.clone());
    kept.runs += 1;
    let mut execution = Execution {
        engine,
        run,
        kept,
        png_info: item.extra_data.get("extra_pnginfo").cloned().unwrap_or(Json::Null),
        graph: Graph::new(item.prompt.clone()),
        schedule: Schedule::default(),
        expanded: HashMap::new(),
        pending: IndexMap::new(),
        uis: IndexMap::new(),
        executed: Vec::new(),
        messages: Vec::new(),
        begun: false,
    };
    let ending = execution.run_all(&item.outputs).await;
    // A worker that died stays at its node for whoever connects later.
    if matches!(ending, Ending::Finished(_)) {
        engine.now_executing(None);
    }
    ending
}

impl Execution<'_> {
    /// Notes a message for the history, and sends it.
    fn message(&mut self, event: &'static str, data: Json, to_all: bool) {
        let Json::Dict(mut data) = data else {
            return;
        };
        data.insert("timestamp".into(), now_ms().into());
        let data = Json::Dict(data);
        self.messages.push(Json::List(vec![event.into(), data.clone()]));
        let message = Outgoing::Text { event, data };
        if to_all {
            self.run.client.tell_or_all(&*self.run.hub, message);
        } else {
            self.run.client.tell(&*self.run.hub, message);
        }
    }

    fn id(&self) -> Json {
        self.run.prompt_id.as_str().into()
    }

    async fn run_all(&mut self, outputs: &[String]) -> Ending {
        self.message("execution_start", dict([("prompt_id", self.id())]), false);
        let ids = self.node_ids();
        self.ask_for_changes(&ids);
        let signer = Signer { graph: &self.graph, registry: &self.engine.registry, run: self.kept.runs };
        if self.kept.cache.begin(ids.iter().map(String::as_str), &signer).is_err() {
            return Ending::WorkerDied;
        }
        self.kept.memory.keep_objects(|id, class| self.graph.class(id) == Some(class));
        let cached = ids.iter().filter(|id| self.cached(id)).map(Json::from).collect();
        self.message(
            "execution_cached",
            dict([("nodes", Json::List(cached)), ("prompt_id", self.id())]),
            false,
        );
        let current_outputs = self.kept.cache.all_ids();
        for output in outputs {
            let cached = |id: &str| self.kept.cache.get(id, &self.graph).is_some();
            if self.schedule.add(output, &self.graph, &cached).is_err() {
                return Ending::WorkerDied;
            }
        }
        match self.run_nodes(&current_outputs).await {
            Ok(()) => self.message("execution_success", dict([("prompt_id", self.id())]), false),
            Err(Failure::Told) => {}
            Err(Failure::WorkerDies) => return Ending::WorkerDied,
            Err(Failure::ProcessEnds) => return Ending::ProcessEnded,
        }
        if self.run.faults.files_gone {
            for file in self.run.written() {
                // A file that is gone already is what was asked for.
                let _ = std::fs::remove_file(file);
            }
        }
        Ending::Finished(Box::new(self.outcome(&ids)))
    }

    fn node_ids(&self) -> Vec<String> {
        self.graph.original().as_dict().map(|nodes| nodes.keys().cloned().collect()).unwrap_or_default()
    }

    fn cached(&self, id: &str) -> bool {
        self.kept.cache.get(id, &self.graph).is_some()
    }

    /// Asks the nodes that look at files (or at the clock) whether they changed.
    fn ask_for_changes(&mut self, ids: &[String]) {
        for id in ids {
            let Some(class) = self.graph.class(id) else {
                continue;
            };
            // Links are not followed here, so whoever links a file name is executed every time.
            let inputs = self.graph.inputs(id);
            let value = |name: &str| inputs?.get(name).filter(|value| as_link(value).is_none()).cloned();
            if let Some(mark) = nodes::files::change_mark(class, &self.run.dirs, value) {
                self.graph.note_change(id, mark);
            }
        }
    }

    async fn run_nodes(&mut self, current_outputs: &[String]) -> Result<(), Failure> {
        loop {
            let class_is = |id: &str, test: &dyn Fn(&str) -> bool| self.graph.class(id).is_some_and(test);
            let is_output = |id: &str| {
                class_is(id, &|name| self.engine.registry.get(name).is_some_and(|class| class.output_node))
            };
            let is_async =
                |id: &str| self.run.profile() >= Profile::V0_3_64 && class_is(id, &nodes::is_async);
            match self.schedule.next(!self.pending.is_empty(), is_output, is_async) {
                Next::Done => return Ok(()),
                Next::Wait => self.wait().await,
                Next::Cycle(nodes) => return Err(self.cycle(&nodes, current_outputs)),
                Next::Node(id) => {
                    match self.turn(&id).await {
                        Ok(Turn::Done) => {
                            self.kept.success = true;
                            self.schedule.finish(&id);
                        }
                        Ok(Turn::Pending) => self.kept.success = true,
                        Err((raised, inputs)) => {
                            return Err(self.failed(&id, raised, &inputs, current_outputs));
                        }
                    }
                    // Others get their turn between nodes, as they do when Python switches threads.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// Waits for the asynchronous node that is done first.
    async fn wait(&mut self) {
        if let Some(first) = self.pending.values().filter_map(|returned| returned.ready_at).min() {
            tokio::time::sleep_until(first).await;
        }
        let now = tokio::time::Instant::now();
        for (id, returned) in &mut self.pending {
            if returned.ready_at.is_some_and(|at| at <= now) {
                returned.ready_at = None;
                self.schedule.release(id);
            }
        }
    }

    /// One turn of one node.
    async fn turn(&mut self, id: &str) -> Result<Turn, (Raised, IndexMap<String, Value>)> {
        if let Some(entry) = self.kept.cache.get(id, &self.graph) {
            self.found(id, &entry);
            return Ok(Turn::Done);
        }
        let mut inputs = IndexMap::new();
        let returned = if let Some(returned) = self.pending.shift_remove(id) {
            returned
        } else if let Some(links) = self.expanded.remove(id) {
            let outputs = links.iter().map(|link| self.linked(link).unwrap_or(Value::Plain(link.clone())));
            Returned::values(outputs.collect::<Vec<_>>())
        } else {
            self.run.start_progress(id, &self.graph);
            inputs = self.inputs(id);
            match self.call(id, &inputs).await {
                Ok(returned) => returned,
                Err(raised) => return Err((raised, inputs)),
            }
        };
        if returned.ready_at.is_some() {
            self.schedule.hold(id);
            self.pending.insert(id.to_owned(), returned);
            return Ok(Turn::Pending);
        }
        self.take(id, returned).map_err(|raised| (raised, inputs))
    }

    /// A node whose results are there already.
    fn found(&mut self, id: &str, entry: &Entry) {
        let shown = entry.ui.as_ref().map_or(Json::Null, |ui| ui.output.clone());
        let serializable = entry.ui.as_ref().is_none_or(|ui| ui.serializable);
        self.tell_executed(id, shown, serializable);
        // From 0.3.68 on, prompts without an owner forget what cached nodes have to show.
        if self.run.client != Client::Nobody
            && let Some(ui) = &entry.ui
        {
            self.uis.insert(id.to_owned(), ui.clone());
        }
        self.run.finish_progress(id, &self.graph);
    }

    fn tell_executed(&self, id: &str, output: Json, serializable: bool) {
        let message = if serializable {
            let data = dict([
                ("node", id.into()),
                ("display_node", self.graph.display(id).into()),
                ("output", output),
                ("prompt_id", self.id()),
            ]);
            Outgoing::Text { event: "executed", data }
        } else {
            Outgoing::Unserializable
        };
        self.run.client.tell(&*self.run.hub, message);
    }

    /// The value at the end of a link.
    fn linked(&self, value: &Json) -> Option<Value> {
        let link = as_link(value)?;
        let entry = self.kept.cache.get(&link.node, &self.graph)?;
        pick(&entry.outputs, &link.slot).cloned()
    }

    /// All inputs of a node, the hidden ones of older classes included.
    fn inputs(&self, id: &str) -> IndexMap<String, Value> {
        let mut found = IndexMap::new();
        let Some(class) = self.graph.class(id).and_then(|name| self.engine.registry.get(name)) else {
            return found;
        };
        let is_declared =
            |name: &str| class.input(name).is_some() || class.hidden.iter().any(|(hidden, _)| hidden == name);
        for (name, value) in self.graph.inputs(id).into_iter().flatten() {
            if as_link(value).is_some() {
                found.insert(name.clone(), self.linked(value).unwrap_or(Value::Plain(Json::Null)));
            } else if is_declared(name) {
                found.insert(name.clone(), Value::Plain(value.clone()));
            }
        }
        for (name, kind) in class.hidden.iter().filter(|_| !class.newer) {
            let value = match kind.as_str() {
                "PROMPT" => self.graph.original().clone(),
                "EXTRA_PNGINFO" => self.png_info.clone(),
                "UNIQUE_ID" => id.into(),
                _ => continue,
            };
            found.insert(name.clone(), Value::Plain(value));
        }
        found
    }

    /// Runs a node, unless something blocks it.
    async fn call(&mut self, id: &str, inputs: &IndexMap<String, Value>) -> Result<Returned, Raised> {
        let display = self.graph.display(id).to_owned();
        if self.run.client != Client::Nobody {
            self.engine.now_executing(Some(display.clone()));
        }
        let data = dict([("node", id.into()), ("display_node", display.into()), ("prompt_id", self.id())]);
        self.run.client.tell(&*self.run.hub, Outgoing::Text { event: "executing", data });
        self.strike_first().await?;
        self.run.check_interrupt()?;
        let class_type = self.graph.class(id).unwrap_or_default();
        let Some(class) = self.engine.registry.get(class_type) else {
            return Err(Exception::new("KeyError", Json::from(class_type).repr()).into());
        };
        let blocker = inputs.values().find_map(|value| match value {
            Value::Blocked(message) => Some(message.clone()),
            _ => None,
        });
        if let Some(message) = blocker {
            if let Some(message) = message {
                self.tell_blocked(id, &message);
            }
            return Ok(Returned::values(vec![Value::Blocked(None); class.returns.len()]));
        }
        let call = Call {
            run: self.run,
            memory: &self.kept.memory,
            node: id,
            class,
            inputs,
            prompt: self.graph.original(),
            png_info: &self.png_info,
        };
        nodes::run(&call).await
    }

    /// Faults that strike the first node that is executed.
    async fn strike_first(&mut self) -> Result<(), Raised> {
        if self.begun {
            return Ok(());
        }
        self.begun = true;
        if let Some(released) = &self.run.faults.hang {
            released.cancelled().await;
        }
        if self.run.faults.crash { Err(Raised::ProcessEnds) } else { Ok(()) }
    }

    /// Takes what a node gave: shows it, keeps it, or makes the nodes it expands into.
    fn take(&mut self, id: &str, returned: Returned) -> Result<Turn, Raised> {
        if let Some(ui) = returned.ui {
            let ui = failure::flatten(&ui)?;
            if !ui.is_empty() {
                let ui = Ui::new(&self.graph, id, Json::Dict(ui), !returned.unserializable);
                self.uis.insert(id.to_owned(), ui.clone());
                self.tell_executed(id, ui.output, ui.serializable);
            }
        }
        if let Some(expansion) = returned.expansion {
            self.expand(id, expansion.nodes, &expansion.results)?;
            self.expanded.insert(id.to_owned(), expansion.results);
            return Ok(Turn::Pending);
        }
        let entry = Entry { ui: self.uis.get(id).cloned(), outputs: returned.outputs };
        self.kept.cache.set(id, &self.graph, Arc::new(entry));
        self.run.finish_progress(id, &self.graph);
        self.executed.push(id.to_owned());
        Ok(Turn::Done)
    }

    fn expand(&mut self, id: &str, made: Vec<(String, Json)>, results: &[Json]) -> Result<(), Raised> {
        let mut ids = Vec::new();
        for (new, node) in made {
            self.graph.add(&new, node, id);
            ids.push(new);
        }
        self.ask_for_changes(&ids);
        let signer = Signer { graph: &self.graph, registry: &self.engine.registry, run: self.kept.runs };
        let begun = self.kept.cache.begin_below(id, &ids, &signer);
        begun.map_err(|_| Exception::new("KeyError", "'inputs'"))?;
        let cached = |id: &str| self.kept.cache.get(id, &self.graph).is_some();
        for new in &ids {
            let class = self.graph.class(new).and_then(|name| self.engine.registry.get(name));
            if class.is_some_and(|class| class.output_node) {
                self.schedule.add(new, &self.graph, &cached).map_err(|_| not_found(new))?;
            }
        }
        for link in results.iter().filter_map(as_link) {
            self.schedule
                .wait_for(&link.node, id, &self.graph, &cached)
                .map_err(|_| not_found(&link.node))?;
        }
        Ok(())
    }

    /// What the history will say.
    fn outcome(&mut self, ids: &[String]) -> Outcome {
        if self.run.profile() < Profile::V0_7_0 {
            // Older versions list whatever is in the cache, executed or not, and whoever asks.
            for id in ids.iter().chain(&self.kept.cache.all_ids()) {
                if let Some(ui) = self.kept.cache.get(id, &self.graph).and_then(|entry| entry.ui.clone()) {
                    self.uis.entry(id.clone()).or_insert(ui);
                }
            }
        }
        let all = |part: fn(&Ui) -> &Json| {
            Json::Dict(self.uis.iter().map(|(id, ui)| (id.clone(), part(ui).clone())).collect())
        };
        let success = self.kept.success;
        Outcome {
            outputs: all(|ui| &ui.output),
            meta: all(|ui| &ui.meta),
            status: dict([
                ("status_str", if success { "success" } else { "error" }.into()),
                ("completed", success.into()),
                ("messages", Json::List(self.messages.clone())),
            ]),
            serializable: self.uis.values().all(|ui| ui.serializable),
        }
    }
}

fn not_found(id: &str) -> Exception {
    Exception::new("comfy_execution.graph.NodeNotFoundError", format!("Node {id} not found"))
}
