//! The third loosening of the order of frames, **sibling order**: which of two output nodes that do not depend on
//! each other runs first comes from a Python set, so it changes from start to start of the real server.
//!
//! If the nodes of a replay ran in another order than recorded, both are brought into one order: the frames of each
//! node together, by node id, and of `progress_state` only the node that changed.

use crate::frames::Shape;
use serde_json::Value;

/// Both in one order, if only the order of the nodes differs.
pub fn in_one_order(expected: Vec<Shape>, got: Vec<Shape>) -> (Vec<Shape>, Vec<Shape>) {
    let order = |shapes: &[Shape]| shapes.iter().filter_map(executed_node).collect::<Vec<_>>();
    let (mut expected_order, mut got_order) = (order(&expected), order(&got));
    if expected_order == got_order {
        return (expected, got);
    }
    expected_order.sort();
    got_order.sort();
    if expected_order != got_order {
        return (expected, got);
    }
    (by_node(expected), by_node(got))
}

fn executed_node(shape: &Shape) -> Option<String> {
    let data = &shape.document["data"];
    let node = data["node"].as_str().filter(|_| shape.kind == "executing")?;
    Some(format!("{} {node}", data["prompt_id"]))
}

fn by_node(shapes: Vec<Shape>) -> Vec<Shape> {
    let mut ordered = Vec::new();
    let mut of_nodes: Vec<(String, Shape)> = Vec::new();
    let mut states = Value::Null;
    let mut running = String::new();
    for mut shape in shapes {
        let subject = match shape.kind.as_str() {
            "executing" | "executed" | "progress" => {
                shape.document["data"]["node"].as_str().map(str::to_owned)
            }
            "binary 1" | "binary 4" => Some(running.clone()),
            "progress_state" => reduce_to_change(&mut shape.document, &mut states),
            _ => None,
        };
        match subject {
            Some(node) => {
                running.clone_from(&node);
                of_nodes.push((node, shape));
            }
            None => {
                of_nodes.sort_by(|a, b| a.0.cmp(&b.0));
                ordered.extend(of_nodes.drain(..).map(|(_, shape)| shape));
                ordered.push(shape);
            }
        }
    }
    of_nodes.sort_by(|a, b| a.0.cmp(&b.0));
    ordered.extend(of_nodes.into_iter().map(|(_, shape)| shape));
    ordered
}

/// Leaves only the node whose state changed since the last such frame, and names it.
fn reduce_to_change(document: &mut Value, last: &mut Value) -> Option<String> {
    let nodes = document["data"]["nodes"].take();
    let same_prompt = last["prompt_id"] == document["data"]["prompt_id"];
    let changed = nodes
        .as_object()?
        .iter()
        .find(|(node, state)| !same_prompt || last["nodes"].get(node.as_str()) != Some(state))
        .map(|(node, state)| (node.clone(), state.clone()));
    *last = serde_json::json!({"prompt_id": document["data"]["prompt_id"], "nodes": nodes});
    let (node, state) = changed?;
    document["data"]["nodes"] = serde_json::json!({&node: state});
    Some(node)
}
