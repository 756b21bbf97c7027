//! Any bytes as a body of `POST /prompt`, checked before it is sent; after a zero byte, any bytes as object_info.

#![no_main]

use comfyui::guard::{Options, Report, check_request, check_text};
use comfyui::object_info::ObjectInfo;
use comfyui::workflow::Workflow;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// What a real server says about the nodes that occur in the seeds.
static RECORDED: LazyLock<Option<ObjectInfo>> = LazyLock::new(|| {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/comfyui-sim/tests/recordings/object_info.json");
    let recording: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let answers = recording["exchanges"].as_array()?.iter();
    let nodes = answers.filter_map(|exchange| exchange["response"]["body"].as_object().cloned()).flatten();
    let nodes: Map<String, Value> = nodes.collect();
    ObjectInfo::from_slice(&serde_json::to_vec(&nodes).ok()?).ok()
});

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let body = parts.next().unwrap_or_default();
    let given = parts.next().and_then(|info| ObjectInfo::from_slice(info).ok());
    let options = Options::default();
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    for info in [None, given.as_ref().or(RECORDED.as_ref())] {
        consistent(&check_text(body, info, &options), &request);
        consistent(&check_request(body, info, &options), &request["prompt"]);
    }
});

/// The contract's first killer is a node without `inputs`: ComfyUI takes the graph and never runs anything again.
fn consistent(report: &Report, graph: &Value) {
    assert!(!(report.kills() && report.may_be_sent()), "{report}");
    if Workflow::parse(graph.to_string()).is_ok() {
        let mut nodes = graph.as_object().into_iter().flat_map(|nodes| nodes.values());
        let killer = nodes.any(|node| node.is_object() && !node["inputs"].is_object());
        // The server refuses some of these for another reason, so to ask for "kills" would be too much.
        assert!(!(killer && report.may_be_sent()), "a graph that ends the worker passes: {report}");
    }
}
