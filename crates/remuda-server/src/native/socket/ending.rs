//! The end of a prompt as its client sees it: from the store, whatever was heard of it before.

use std::collections::HashMap;

use remuda_core::{Failure, Status, Task};
use serde::Deserialize;
use serde_json::{Value, json};

use super::story::{Story, Word, now};
use super::words;

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
        let at = task.finished_at.map_or_else(now, |at| at.as_millisecond());
        let (kind, mut data) = match task.status {
            Status::Completed => ("execution_success", json!({"prompt_id": self.name})),
            Status::Cancelled => ("execution_interrupted", self.interrupted(workflow)),
            Status::Failed | Status::Pending | Status::Running => {
                ("execution_error", self.failed(task.error.as_ref(), workflow))
            }
        };
        data["timestamp"] = at.into();
        out.push(Word::Text(words::message(kind, data)));
        out.push(Word::Status);
        let data = json!({"node": null, "prompt_id": self.name});
        out.push(Word::Text(words::message("executing", data)));
    }

    /// Files are told of if they are there, and so is everything that was not heard.
    fn tell_outputs(&mut self, task: &Task, out: &mut Vec<Word>) {
        let none = serde_json::Map::new();
        let outputs = task.result.as_ref().and_then(|result| result.outputs.as_object()).unwrap_or(&none);
        let held = std::mem::take(&mut self.held);
        for held in &held {
            if let Some(output) = outputs.get(&held.node) {
                out.push(Word::Text(self.executed(&held.node, &held.display_node, output)));
            }
        }
        out.extend(self.behind.drain(..).map(Word::Text));
        for (node, output) in outputs {
            let told = held.iter().any(|held| held.node == *node)
                || self.told.iter().any(|(known, before)| known == node && before == output);
            if !told {
                // A node that another one was expanded into is shown as that one.
                let display_node = node.split('.').next().unwrap_or(node);
                out.push(Word::Text(self.executed(node, &display_node.into(), output)));
            }
        }
    }

    fn interrupted(&mut self, workflow: Option<&str>) -> Value {
        if let Some((_, data)) = self.inner_end.take_if(|(kind, _)| kind == "execution_interrupted") {
            return data;
        }
        let node = self.node.clone().unwrap_or_default();
        let node_type = class_of(workflow, &node);
        json!({"prompt_id": self.name, "node_id": node, "node_type": node_type, "executed": self.done})
    }

    fn failed(&mut self, failure: Option<&Failure>, workflow: Option<&str>) -> Value {
        let node = failure.and_then(|failure| failure.node_id.clone());
        // ComfyUI said more than was kept, if it is the same error.
        let heard = self.inner_end.take_if(|(kind, data)| {
            kind == "execution_error" && node.as_deref().is_some_and(|node| data["node_id"] == node)
        });
        if let Some((_, data)) = heard {
            return data;
        }
        let details = failure.and_then(|failure| failure.details.clone()).unwrap_or_default();
        let node = node.or_else(|| self.node.clone()).unwrap_or_default();
        let node_type = match details["node_type"].as_str() {
            Some(node_type) => node_type.to_owned(),
            None => class_of(workflow, &node),
        };
        let message = match details["exception_message"].as_str() {
            Some(message) => message.to_owned(),
            None => failure.map(|failure| format!("{}\n", failure.message)).unwrap_or_default(),
        };
        let exception = match details["exception_type"].as_str() {
            Some(exception) => exception.to_owned(),
            None => failure.map(|failure| failure.class.to_string()).unwrap_or_default(),
        };
        let traceback = details.get("traceback").filter(|lines| lines.is_array()).cloned();
        json!({
            "prompt_id": self.name,
            "node_id": node,
            "node_type": node_type,
            "executed": self.done,
            "exception_message": message,
            "exception_type": exception,
            "traceback": traceback.unwrap_or_else(|| json!([])),
            "current_inputs": {},
            "current_outputs": self.done,
        })
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
