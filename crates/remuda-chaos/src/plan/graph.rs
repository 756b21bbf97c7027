//! Graphs that the simulator runs, each unlike every other, and their fingerprints.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Renders a picture in this many steps of this many milliseconds.
pub(super) fn render(seed: u64, steps: u64, step_ms: u64) -> Value {
    json!({"class_type": "RigProgress", "inputs": {
        "steps": steps, "step_ms": step_ms, "preview": "none", "preview_size": 16, "seed": seed
    }})
}

/// Saves the picture of node 1 below a folder of its own.
pub(super) fn save(prefix: &str) -> Value {
    json!({"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": prefix}})
}

/// The graph as ComfyUI gets it: Remuda puts a folder of the task's own before literal prefixes.
pub(super) fn as_sent(graph: &Value, task: &str) -> Value {
    let mut sent = graph.clone();
    for node in sent.as_object_mut().into_iter().flat_map(|nodes| nodes.values_mut()) {
        if let Some(prefix) = node["inputs"].get_mut("filename_prefix")
            && let Some(literal) = prefix.as_str()
        {
            *prefix = json!(format!("remuda/{task}/{literal}"));
        }
    }
    sent
}

/// The name under which the simulator counts a graph: SHA-256 of its JSON with sorted keys and without spaces.
pub(super) fn digest(graph: &Value) -> String {
    let mut text = String::new();
    canonical(graph, &mut text);
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Python's form; the graphs here have neither fractions nor letters beyond ASCII, which it would write otherwise.
fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort();
            text.push('{');
            for (place, name) in names.into_iter().enumerate() {
                let comma = if place == 0 { "" } else { "," };
                let _ = write!(text, "{comma}{}:", Value::from(name.as_str()));
                canonical(&fields[name], text);
            }
            text.push('}');
        }
        Value::Array(values) => {
            text.push('[');
            for (place, value) in values.iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                canonical(value, text);
            }
            text.push(']');
        }
        other => {
            let _ = write!(text, "{other}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_that_of_the_simulator() {
        // python3: sha256(json.dumps(graph, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        let graph = json!({"2": {"inputs": {"b": ["1", 0], "a": 7}, "class_type": "A"}, "10": {}});
        assert_eq!(digest(&graph), "8aeb01da0dd9019afdcdc9c010b46822a055c3913aeea8f7fb1922b9312769d0");
    }

    #[test]
    fn only_literal_prefixes_get_the_folder_of_the_task() {
        let graph = json!({"1": render(1, 2, 3), "2": save("chaos/1"),
            "3": {"class_type": "SaveImage", "inputs": {"filename_prefix": ["4", 0]}}});
        let sent = as_sent(&graph, "t");
        assert_eq!(sent["2"]["inputs"]["filename_prefix"], "remuda/t/chaos/1");
        assert_eq!((&sent["1"], &sent["3"]), (&graph["1"], &graph["3"]));
    }
}
