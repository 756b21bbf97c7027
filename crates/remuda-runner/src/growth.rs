//! The table of all functions of a runner over graphs and results, as the one of the crate `comfyui`: each is run with the
//! input that would cost it most, and must grow with it. tidy (in `cargo xtask test`) refuses one that is in no such table.

use std::hint::black_box;

use comfyui::guard::{self, Options};
use comfyui::{Event, NodeState, ObjectInfo, Workflow};
use remuda_core::{Capabilities, TaskId};

use crate::decide::edits::{self, Placed};
use crate::decide::{graph, progress};
use remuda_testbed::growth::{Case, case, check};

/// A graph of `n` nodes, each made by `node` from its number.
fn of_nodes(n: usize, node: impl Fn(usize) -> String) -> Workflow {
    let nodes: Vec<String> = (0..n).map(|at| format!("\"{at}\": {}", node(at))).collect();
    Workflow::parse(format!("{{{}}}", nodes.join(", "))).unwrap()
}

/// One node with `n` inputs.
fn of_inputs(n: usize, input: impl Fn(usize) -> String) -> Workflow {
    let inputs: Vec<String> = (0..n).map(input).collect();
    Workflow::parse(format!("{{\"1\": {{\"class_type\": \"Save\", \"inputs\": {{{}}}}}}}", inputs.join(", ")))
        .unwrap()
}

fn save(at: usize) -> String {
    format!(
        r#"{{"class_type": "Save", "inputs": {{"images": ["{at}", 0], "filename_prefix": "a{at}", "width": {at}}}}}"#
    )
}

fn server(choices: usize) -> ObjectInfo {
    let list: Vec<String> = (0..choices).map(|at| format!("\"m{at}.safetensors\"")).collect();
    let text = format!(
        r#"{{"Save": {{"input": {{"required": {{"images": ["IMAGE"], "filename_prefix": ["STRING"]}}}}, "output": ["IMAGE"], "output_node": true}},
            "Load": {{"input": {{"required": {{"image": [[{list}], {{"image_upload": true}}], "lora_name": [[{list}]]}}}}, "output": ["IMAGE"]}}}}"#,
        list = list.join(", ")
    );
    ObjectInfo::from_slice(text.as_bytes()).unwrap()
}

fn table() -> Vec<Case> {
    vec![
        case(&["edits::edit"], "a prefix in every node and a file for every node", 300, |n| {
            let workflow = of_nodes(n, save);
            let placed: Vec<Placed> = (0..n)
                .map(|at| Placed { node_id: at.to_string(), input: "width".into(), name: "x.png".into() })
                .collect();
            Box::new(move || {
                black_box(edits::edit(&workflow, Some(TaskId::new()), &placed).unwrap());
            })
        }),
        case(&["edits::edit"], "one id that stands many times", 300, |n| {
            let node = r#""1": {"class_type": "Save", "inputs": {"filename_prefix": "a"}}"#;
            let workflow = Workflow::parse(format!("{{{}}}", vec![node; n].join(", "))).unwrap();
            Box::new(move || {
                black_box(edits::edit(&workflow, Some(TaskId::new()), &[]).unwrap());
            })
        }),
        case(&["edits::placed_name"], "a name of dots", 5_000, |n| {
            let name = ".".repeat(n) + "a";
            Box::new(move || {
                black_box(edits::placed_name(&remuda_core::Sha256::of(b"x"), &name));
            })
        }),
        case(
            &["graph::judge", "graph::refusal"],
            "nodes that link to themselves, and deadly inputs",
            300,
            |n| {
                let (workflow, info) = (of_nodes(n, save), server(n));
                let deadly = of_inputs(n, |at| format!("\"i{at}\": 1e999"));
                Box::new(move || {
                    black_box(graph::judge(&workflow, &info, &Capabilities::default()));
                    black_box(graph::judge(&deadly, &info, &Capabilities::default()));
                    black_box(graph::refusal(&guard::check(&deadly, None, &Options::default())));
                })
            },
        ),
        case(&["Meter::take"], "an event for every node", 400, |n| {
            let node = |at: usize| NodeState { node: at.to_string(), value: 1.0, max: 1.0, finished: true };
            Box::new(move || {
                let now = tokio::time::Instant::now();
                let mut meter = progress::Meter::new(TaskId::new(), 1, n);
                for at in 0..n {
                    black_box(meter.take(now, &Event::Nodes(vec![node(at)])));
                }
                assert!(meter.fraction() > 0.99);
            })
        }),
    ]
}

#[test]
fn everything_over_a_graph_grows_with_it() {
    check(&table());
}
