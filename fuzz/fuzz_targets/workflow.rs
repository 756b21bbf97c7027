//! Any bytes as a workflow: the text is kept, and replacing one input changes that input and nothing else.

#![no_main]

use comfyui::workflow::Workflow;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|bytes: &[u8]| {
    let Ok(workflow) = Workflow::parse(bytes) else {
        return;
    };
    assert_eq!(Workflow::parse(workflow.as_str()).ok().as_ref(), Some(&workflow));

    // Numbers beyond every float are legal in the text and not in a `Value`.
    let Ok(graph) = serde_json::from_str::<Value>(workflow.as_str()) else {
        return;
    };
    for node in workflow.nodes() {
        let _ = (node.class_type(), node.title());
        for input in node.inputs().unwrap_or_default() {
            let _ = (input.link(), input.value());
            let Ok(edited) = workflow.with_input(node.id(), &input.name, "new \"text\"") else {
                continue;
            };
            let mut expected = graph.clone();
            expected[node.id()]["inputs"][input.name.as_ref()] = json!("new \"text\"");
            assert_eq!(serde_json::from_str::<Value>(edited.as_str()).ok(), Some(expected));
        }
    }
});
