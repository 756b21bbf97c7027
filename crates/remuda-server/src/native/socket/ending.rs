//! The end of a prompt as its client sees it: from the store, whatever was heard of it before.

use std::collections::HashMap;

use remuda_core::{Status, Task};
use serde::Deserialize;
use serde_json::{Value, json};

use super::story::{Story, Word};
use super::words;
use crate::native::prompts::messages;

impl Story {
    /// Tells the end. `workflow` is its graph, which is needed for bad ends only.
    pub(super) fn end(&mut self, task: &Task, workflow: Option<&str>, out: &mut Vec<Word>) {
        out.extend(self.take_picture());
        if task.status == Status::Cancelled && !self.has_begun() {
            // It left the queue, and that is all.
            out.push(Word::Status);
            return;
        }
        self.begin(out);
        self.tell_outputs(task, out);
        // The same words as in the history, and what was heard beside them.
        if let Some((kind, data)) = messages::end(task) {
            let at = data["timestamp"].clone();
            let mut data = match task.status {
                Status::Cancelled => self.interrupted(data, workflow),
                Status::Failed => self.failed(data, workflow),
                Status::Completed | Status::Pending | Status::Running => data,
            };
            data["timestamp"] = at;
            out.push(Word::Text(words::message(kind, data)));
        }
        out.push(Word::Status);
        let data = json!({"node": null, "prompt_id": self.name});
        out.push(Word::Text(words::message("executing", data)));
    }

    /// Files are told of if they are there, and so is everything that was not heard.
    fn tell_outputs(&mut self, task: &Task, out: &mut Vec<Word>) {
        let outputs = match task.result.as_ref().map(|result| result.outputs.read()) {
            Some(Value::Object(outputs)) => outputs,
            _ => serde_json::Map::new(),
        };
        let held = std::mem::take(&mut self.held);
        let mut in_order: Vec<_> = held.iter().collect();
        in_order.sort_unstable_by_key(|(_, held)| held.order);
        for (node, held) in in_order {
            if let Some(output) = outputs.get(node) {
                out.push(Word::Text(self.executed(node, &held.display_node, output)));
            }
        }
        out.extend(self.behind.drain(..).map(Word::Text));
        for (node, output) in &outputs {
            let told = held.contains_key(node) || self.was_told(node, output);
            if !told {
                // A node that another one was expanded into is shown as that one.
                let display_node = node.split('.').next().unwrap_or(node);
                out.push(Word::Text(self.executed(node, &display_node.into(), output)));
            }
        }
    }

    fn interrupted(&mut self, mut data: Value, workflow: Option<&str>) -> Value {
        if let Some((_, heard)) = self.inner_end.take_if(|(kind, _)| kind == "execution_interrupted") {
            return heard;
        }
        if let Some(node) = &self.node {
            data["node_id"] = node.as_str().into();
            data["node_type"] = class_of(workflow, node).into();
            data["executed"] = self.done.clone().into();
        }
        data
    }

    fn failed(&mut self, mut data: Value, workflow: Option<&str>) -> Value {
        let node = data["node_id"].as_str().unwrap_or_default().to_owned();
        // ComfyUI said more than was kept, if it is the same error.
        let heard = self.inner_end.take_if(|(kind, heard)| {
            kind == "execution_error" && heard["node_id"] == node && !node.is_empty()
        });
        if let Some((_, heard)) = heard {
            return heard;
        }
        if data["node_type"] == "" {
            data["node_type"] = class_of(workflow, &node).into();
        }
        if !self.done.is_empty() {
            data["executed"] = self.done.clone().into();
        }
        data
    }
}

#[derive(Deserialize)]
struct Node {
    #[serde(default)]
    class_type: String,
}

/// The class of a node of a graph.
fn class_of(workflow: Option<&str>, node: &str) -> String {
    let nodes = workflow.and_then(|text| serde_json::from_str::<HashMap<String, Node>>(text).ok());
    let outer = node.split('.').next().unwrap_or(node);
    let node = nodes.and_then(|mut nodes| nodes.remove(node).or_else(|| nodes.remove(outer)));
    node.map(|node| node.class_type).unwrap_or_default()
}
