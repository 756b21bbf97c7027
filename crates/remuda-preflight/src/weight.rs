//! What it takes to hold a graph against the descriptions of workers, told without doing it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use comfyui::ObjectInfo;
use comfyui::object_info::{Dynamic, GrowNames, InputKind, InputSpec};
use remuda_core::Sha256;
use serde_json::Value;

use super::verdict::Case;
use super::workers::KnownWorker;

/// Looking at one input of a class, or comparing a name with one of a list, takes as long as this many bytes of a graph. That is
/// for names that are not there, which are compared for likeness.
const STEP: usize = 16;

/// Nobody needs to know how much more it is: this is far beyond what a runtime's thread does.
const MUCH: usize = 64 << 10;

/// A node of a graph, as far as it matters here.
struct Asked<'a> {
    class: Option<Cow<'a, str>>,
    /// The inputs that are given as values, not as links.
    literals: HashSet<Cow<'a, str>>,
}

/// What it takes to hold a graph of this many bytes against the workers, as bytes of a graph. Every description is gone through
/// with the whole graph: what it says of the graph's classes counts for every node, and all of it where all of it is read.
/// This takes no longer than a small part of the work itself.
pub(super) fn weight(case: &Case, workers: &[KnownWorker], graph: usize) -> usize {
    let able = workers.iter().filter(|worker| case.asked.labels.is_subset(&worker.labels));
    let described: BTreeMap<Sha256, (&ObjectInfo, usize)> =
        able.filter_map(|worker| Some((worker.hash?, (worker.info.as_deref()?, worker.weight)))).collect();
    let mut weight = graph.saturating_mul(described.len().max(1));
    if !case.asked.models.is_empty() {
        weight = described.values().fold(weight, |weight, (_, text)| weight.saturating_add(*text));
    }
    if weight > MUCH || described.is_empty() {
        return weight;
    }
    let nodes: Vec<Asked<'_>> = (case.workflow.nodes().iter())
        .map(|node| {
            let given = node.inputs().unwrap_or_default();
            let literals = given.into_iter().filter(|input| !input.is_list()).map(|input| input.name);
            Asked { class: node.class_type(), literals: literals.collect() }
        })
        .collect();
    for (info, text) in described.into_values() {
        let mut whole = false;
        for node in &nodes {
            let Some(class) = &node.class else { continue };
            let mut left = MUCH / STEP;
            match info.get(class) {
                Some(class) => {
                    look(&class.inputs, &mut left);
                    whole |= class.inputs.iter().take(MUCH / STEP).any(|input| reads_all(input, node));
                }
                // Its name is compared with those of all classes.
                None => left = left.saturating_sub(info.len()),
            }
            weight = weight.saturating_add((MUCH / STEP - left) * STEP);
            if weight > MUCH {
                return weight;
            }
        }
        if whole {
            weight = weight.saturating_add(text);
        }
    }
    weight
}

/// Takes a step for each input and each choice, until none is left.
fn look(inputs: &[InputSpec], left: &mut usize) {
    for input in inputs {
        if *left == 0 {
            return;
        }
        let formats = input.options.get("formats").and_then(Value::as_object);
        let formats = formats.into_iter().flat_map(|formats| formats.values()).filter_map(Value::as_array);
        let choices = match &input.kind {
            InputKind::Choice { options, .. } => options.len(),
            InputKind::Dynamic(Dynamic::Combo { options }) => {
                options.iter().for_each(|(_, inputs)| look(inputs, left));
                options.len()
            }
            InputKind::Dynamic(Dynamic::Slot { inputs, .. }) => {
                look(inputs, left);
                0
            }
            InputKind::Dynamic(Dynamic::Grow { names, template, .. }) => {
                look(std::slice::from_ref(template), left);
                match names {
                    GrowNames::Listed(names) => names.len(),
                    GrowNames::Numbered { count, .. } => *count,
                    _ => 0,
                }
            }
            _ => 0,
        };
        let steps = formats.map(|format| 1 + format.len()).fold(1 + choices, usize::saturating_add);
        *left = left.saturating_sub(steps);
    }
}

/// Whether all outputs of the description are looked through: a value stands where a link is meant, or may stand there.
fn reads_all(input: &InputSpec, node: &Asked<'_>) -> bool {
    match &input.kind {
        InputKind::Link(_) => node.literals.contains(input.name.as_str()),
        InputKind::Dynamic(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use comfyui::Workflow;
    use remuda_core::{Requirements, WorkerId};
    use remuda_pool::{Pool, Work};
    use serde_json::json;

    use super::*;

    fn workers(count: usize, info: &Value) -> Vec<KnownWorker> {
        let text = info.to_string();
        let info = Arc::new(ObjectInfo::from_slice(text.as_bytes()).unwrap());
        let worker = |n: usize| KnownWorker {
            id: WorkerId::new(format!("w{n}")).unwrap(),
            own: true,
            labels: BTreeSet::new(),
            starting: false,
            hash: Some(Sha256::of(&n.to_be_bytes())),
            info: Some(Arc::clone(&info)),
            weight: text.len(),
        };
        (0..count).map(worker).collect()
    }

    /// Whether the graph is held against the workers on the spot.
    fn is_small(graph: &Value, workers: &[KnownWorker]) -> bool {
        let workflow = Workflow::parse(graph.to_string()).unwrap();
        let case = Case { workflow, asked: Requirements::default(), targets: None, strict: false };
        let weight = weight(&case, workers, graph.to_string().len());
        Pool::default().is_small(&Work::new("a test", "t", weight))
    }

    fn info(models: usize, others: usize) -> Value {
        let models: Vec<String> = (0..models).map(|n| format!("models/number-{n}.safetensors")).collect();
        let mut info = json!({
            "Load": {"input": {"required": {"model": [models]}}, "output": ["MODEL"]},
            "Save": {"input": {"required": {"model": ["MODEL"]}}, "output": [], "output_node": true},
        });
        for n in 0..others {
            info[format!("Other{n}")] = json!({"output": ["MODEL", "CLIP", "VAE"]});
        }
        info
    }

    fn graph(class: &str, model: &Value) -> Value {
        json!({
            "1": {"class_type": class, "inputs": {"model": "models/number-3.safetensors"}},
            "2": {"class_type": "Save", "inputs": {"model": model}},
        })
    }

    #[test]
    fn a_small_graph_is_much_work_if_the_descriptions_are_large_or_many() {
        let (link, literal) = (json!(["1", 0]), json!("no link"));
        let usual = graph("Load", &link);
        assert!(is_small(&usual, &[]));
        assert!(is_small(&usual, &workers(3, &info(100, 2000))), "what the graph does not use costs nothing");
        assert!(!is_small(&usual, &workers(64, &info(100, 0))), "many descriptions");
        assert!(!is_small(&usual, &workers(1, &info(5000, 0))), "a long list");
        let unknown = graph("Nothing", &link);
        assert!(is_small(&unknown, &workers(1, &info(10, 10))));
        assert!(!is_small(&unknown, &workers(1, &info(10, 2000))), "its name is compared with all classes");
        let broken = graph("Load", &literal);
        assert!(!is_small(&broken, &workers(1, &info(10, 2000))), "all outputs are looked through");
        let grows = json!({"Load": {"input": {"required": {"row": ["COMFY_AUTOGROW_V3", {"template": {
            "input": {"required": {"image": ["IMAGE"]}}, "prefix": "image", "min": 1, "max": 100}}]}}}});
        let many: Vec<Value> = (0..60).map(|_| json!({"class_type": "Load", "inputs": {}})).collect();
        let many: serde_json::Map<String, Value> =
            many.into_iter().enumerate().map(|(n, node)| (n.to_string(), node)).collect();
        assert!(!is_small(&Value::Object(many), &workers(1, &grows)), "a row counts for every node");
    }
}
