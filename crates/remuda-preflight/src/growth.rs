//! The table of all functions of the pre-flight over graphs, as the one of the crate `comfyui`: each is run with the
//! input that would cost it most, and must grow with it. tidy (in `cargo xtask test`) refuses one that is in no such table.

mod doors;

use std::hint::black_box;

use comfyui::guard::{self, Options};
use comfyui::{ObjectInfo, Workflow};

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
        case(&["paths::check"], "every loader linked to one node with as many inputs", 300, |n| {
            let inputs: Vec<String> = (0..n).map(|at| format!("\"i{at}\": {at}")).collect();
            let hub = format!(r#"{{"class_type": "Hub", "inputs": {{{}}}}}"#, inputs.join(", "));
            let load = r#"{"class_type": "LoadImage", "inputs": {"image": ["0", 0]}}"#;
            let workflow = of_nodes(n, |at| if at == 0 { hub.clone() } else { load.to_owned() });
            Box::new(move || {
                doors::paths_checked(black_box(&workflow)).unwrap();
            })
        }),
        case(&["paths::check", "Handed::new"], "every loader linked to a chain of as many nodes", 300, |n| {
            let on =
                |at: usize| format!(r#"{{"class_type": "Reroute", "inputs": {{"": ["{}", 0]}}}}"#, at + 1);
            let load = |at: usize| {
                format!(r#"{{"class_type": "LoadImage", "inputs": {{"image": ["{}", 0]}}}}"#, at - n)
            };
            let workflow = of_nodes(2 * n, |at| if at < n { on(at) } else { load(at) });
            Box::new(move || {
                doors::paths_checked(black_box(&workflow)).unwrap();
            })
        }),
        case(&["paths::check"], "every loader linked to a holder of as many texts", 300, |n| {
            let texts: Vec<String> = (0..n).map(|at| format!("\"i{at}\": \"{at}.png\"")).collect();
            let hub = format!(r#"{{"class_type": "TextSwitch", "inputs": {{{}}}}}"#, texts.join(", "));
            let load = r#"{"class_type": "LoadImage", "inputs": {"image": ["0", 0]}}"#;
            let workflow = of_nodes(n, |at| if at == 0 { hub.clone() } else { load.to_owned() });
            Box::new(move || {
                doors::paths_checked(black_box(&workflow)).unwrap();
            })
        }),
        case(&["paths::check"], "every loader behind a switch behind as many texts", 300, |n| {
            let text =
                format!(r#"{{"class_type": "Text", "inputs": {{"text": "{}"}}}}"#, "%2541".repeat(400));
            let links: Vec<String> = (1..=n).map(|at| format!("\"i{at}\": [\"{at}\", 0]")).collect();
            let hub = format!(r#"{{"class_type": "TextSwitch", "inputs": {{{}}}}}"#, links.join(", "));
            let switch = r#"{"class_type": "TextSwitch", "inputs": {"a": ["0", 0], "n": 1}}"#;
            let load = |at: usize| {
                format!(r#"{{"class_type": "LoadImage", "inputs": {{"image": ["{}", 0]}}}}"#, at - n)
            };
            let workflow = of_nodes(3 * n + 1, |at| match at {
                0 => hub.clone(),
                at if at <= n => text.clone(),
                at if at <= 2 * n => switch.to_owned(),
                at => load(at),
            });
            Box::new(move || {
                doors::paths_checked(black_box(&workflow)).unwrap();
            })
        }),
        case(&["paths::check"], "one long name for every loader", 300, |n| {
            let text = format!(r#"{{"class_type": "Text", "inputs": {{"text": "{}"}}}}"#, "a/".repeat(n));
            let load = r#"{"class_type": "ReadAnything", "inputs": {"path": ["0", 0]}}"#;
            let workflow = of_nodes(n, |at| if at == 0 { text.clone() } else { load.to_owned() });
            Box::new(move || {
                doors::paths_checked(black_box(&workflow)).unwrap();
            })
        }),
        case(
            &["fingerprint::affinity", "fingerprint::shape"],
            "many nodes with models and sizes",
            300,
            |n| {
                let load = |at| {
                    format!(
                        r#"{{"class_type": "C{at}", "inputs": {{"a": "{at}.safetensors", "width": {at}}}}}"#
                    )
                };
                let workflow = of_nodes(n, load);
                Box::new(move || {
                    black_box(doors::fingerprints(&workflow));
                })
            },
        ),
        case(&["Named::of", "placements::all_named"], "names of dots, and many files", 200, |n| {
            let load =
                |at| format!(r#"{{"class_type": "LoadImage", "inputs": {{"image": "{}.png"}}}}"#, at % 9);
            let (workflow, place) = (of_nodes(n, load), ".".repeat(10 * n) + "0.image");
            Box::new(move || {
                black_box(doors::named(&workflow, [(place.as_str(), "x.png")]));
            })
        }),
        case(&["Named::of"], "a file for every input of one node", 200, |n| {
            let workflow = of_inputs(n, |at| format!("\"i{at}\": \"x\""));
            let places: Vec<String> = (0..n).map(|at| format!("1.i{at}")).collect();
            Box::new(move || {
                let places = places.iter().map(|place| (place.as_str(), "x.png"));
                black_box(doors::named(&workflow, places));
            })
        }),
        case(
            &["verdict::judge", "words::node_errors", "Words::of_problems", "workers::capabilities"],
            "everything wrong with everything",
            200,
            |n| {
                let chain = of_nodes(n, |at| match at {
                    0 => r#"{"class_type": "Load", "inputs": {"image": 5, "lora_name": "no.safetensors"}}"#
                        .into(),
                    at => format!(r#"{{"class_type": "Save", "inputs": {{"images": ["{}", 7]}}}}"#, at - 1),
                });
                let deadly = of_inputs(n, |at| format!("\"i{at}\": 1e999"));
                let wrong = of_nodes(n, |at| {
                    format!(
                        r#"{{"class_type": "Load", "inputs": {{"image": "x.png", "lora_name": "q{at}.safetensors"}}}}"#
                    )
                });
                let info = server(n);
                Box::new(move || {
                    for workflow in [&chain, &deadly, &wrong] {
                        let _ = black_box(doors::judged(workflow, &info));
                        let report = guard::check(workflow, Some(&info), &Options::default());
                        black_box(doors::words(workflow, &info, &report));
                    }
                    black_box(crate::capabilities(Default::default(), &info));
                })
            },
        ),
    ]
}

#[test]
fn everything_over_a_graph_grows_with_it() {
    check(&table());
}
