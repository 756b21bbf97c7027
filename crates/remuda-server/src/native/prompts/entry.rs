//! A task as ComfyUI shows a prompt.

use std::fmt;

use remuda_core::{Task, TaskInput, secrets};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::messages;
use super::request::shown;
use crate::native::names;

/// `[number, prompt_id, prompt, extra_data, outputs_to_execute]`.
#[derive(Debug, Serialize)]
pub(super) struct Item(Value, String, Box<RawValue>, Box<RawValue>, Vec<String>);

impl Item {
    /// The item of a task.
    pub(super) fn new(task: &Task, input: TaskInput) -> Self {
        let extra = input.extra.map(|extra| *extra).unwrap_or_default();
        let mut outputs = extra.outputs;
        if outputs.is_empty() {
            // Nobody knew when it came in; by now its results tell.
            outputs = output_nodes(task);
        }
        let extra_data = shown_extra(task, extra.extra_data.as_deref());
        Self(shown(extra.number), names::prompt_id(task), input.workflow, extra_data, outputs)
    }

    pub(super) fn number(&self) -> &Value {
        &self.0
    }

    /// `workflow` of a job.
    pub(super) fn workflow(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct Workflow<'a> {
            prompt: &'a RawValue,
            extra_data: &'a RawValue,
        }
        Workflow { prompt: &self.2, extra_data: &self.3 }
    }
}

/// One entry of the history.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    prompt: Item,
    outputs: Value,
    status: Value,
    meta: Map<String, Value>,
}

impl Entry {
    /// None: it has not ended, or was cancelled before it began.
    pub(super) fn new(task: &Task, input: TaskInput) -> Option<Self> {
        let status = messages::status(task)?;
        let meta = output_nodes(task).into_iter().map(|node| {
            let about =
                json!({"node_id": node, "display_node": node, "parent_node": null, "real_node_id": node});
            (node, about)
        });
        Some(Self { outputs: outputs(task), status, meta: meta.collect(), prompt: Item::new(task, input) })
    }
}

/// What a task left, as a client sees it. Never null.
pub(super) fn outputs(task: &Task) -> Value {
    match task.result.as_ref().map(|result| names::shown_outputs(task.id, &result.outputs)) {
        Some(outputs @ Value::Object(_)) => outputs,
        _ => json!({}),
    }
}

fn output_nodes(task: &Task) -> Vec<String> {
    task.result.as_ref().map(|result| result.outputs.names()).unwrap_or_default()
}

/// `extra_data` as it came, byte for byte, without what is secret and with what ComfyUI adds.
fn shown_extra(task: &Task, extra: Option<&RawValue>) -> Box<RawValue> {
    let pairs: Pairs<'_> = extra.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    let mut parts = Vec::with_capacity(pairs.0.len() + 2);
    let mut push = |name: &str, value: &str| parts.push(format!("{}:{value}", Value::from(name)));
    for (name, value) in &pairs.0 {
        if !secrets::is_secret(name) && name != "client_id" && name != "create_time" {
            push(name, value.get());
        }
    }
    if let Some(client) = task.origin.as_ref().and_then(|origin| origin.client.as_deref()) {
        push("client_id", &Value::from(client).to_string());
    }
    push("create_time", &messages::millis(task.created_at).to_string());
    RawValue::from_string(format!("{{{}}}", parts.join(","))).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The fields of an object, values unread.
#[derive(Default)]
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Fields).map(Self)
    }
}
