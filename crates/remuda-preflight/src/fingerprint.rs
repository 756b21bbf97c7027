//! Graphs as numbers: which models they use, and what they are likely to cost.

use std::collections::{BTreeMap, BTreeSet};

use comfyui::Workflow;
use comfyui::object_info::has_model_ending;
use remuda_core::Sha256;

/// Inputs whose values decide how long a graph takes.
const SIZES: [&str; 14] = [
    "width",
    "height",
    "batch_size",
    "length",
    "steps",
    "frames",
    "num_frames",
    "frame_count",
    "video_frames",
    "seconds",
    "duration",
    "scale_by",
    "upscale_by",
    "megapixels",
];

/// Equal for graphs that load the same models; `None` for those that load none.
pub(super) fn affinity(workflow: &Workflow) -> Option<i64> {
    let mut models = BTreeSet::new();
    for node in workflow.nodes() {
        for input in node.inputs().unwrap_or_default() {
            if let Some(text) = input.text().filter(|text| has_model_ending(text)) {
                models.insert(text.to_string());
            }
        }
    }
    (!models.is_empty()).then(|| number(&format!("{models:?}")))
}

/// Equal for graphs with the same classes and sizes.
pub(super) fn shape(workflow: &Workflow) -> i64 {
    let mut parts: BTreeMap<String, u32> = BTreeMap::new();
    for node in workflow.nodes() {
        let mut part = node.class_type().unwrap_or_default().to_string();
        for input in node.inputs().unwrap_or_default() {
            if SIZES.contains(&input.name.as_ref()) && !input.is_list() {
                part.push_str(&format!(" {}={}", input.name, input.raw.get()));
            }
        }
        *parts.entry(part).or_default() += 1;
    }
    number(&format!("{parts:?}"))
}

fn number(text: &str) -> i64 {
    let hash = Sha256::of(text.as_bytes()).0;
    i64::from_be_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(seed: u64, width: u32, model: &str) -> Workflow {
        Workflow::parse(format!(
            r#"{{"1": {{"class_type": "KSampler", "inputs": {{"seed": {seed}, "steps": 20}}}},
                "2": {{"class_type": "EmptyLatentImage", "inputs": {{"width": {width}}}}},
                "3": {{"class_type": "CheckpointLoaderSimple", "inputs": {{"ckpt_name": "{model}"}}}}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn seeds_do_not_change_the_shape_and_sizes_do() {
        let base = graph(1, 512, "a.safetensors");
        assert_eq!(shape(&base), shape(&graph(2, 512, "b.safetensors")));
        assert_ne!(shape(&base), shape(&graph(1, 1024, "a.safetensors")));
    }

    #[test]
    fn models_decide_the_affinity() {
        let base = graph(1, 512, "a.safetensors");
        assert_eq!(affinity(&base), affinity(&graph(9, 64, "a.safetensors")));
        assert_ne!(affinity(&base), affinity(&graph(1, 512, "b.safetensors")));
        assert_eq!(affinity(&graph(1, 512, "none")), None);
    }
}
