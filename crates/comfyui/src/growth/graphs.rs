//! Workflows and descriptions of nodes.

use std::hint::black_box;

use serde_json::value::{RawValue, to_raw_value};

use crate::guard::{self, Options};
use crate::object_info::ObjectInfo;
use crate::workflow::{Limits, Workflow};
use remuda_testbed::growth::{Case, Work, case};

/// A graph of `n` nodes, each made by `node` from its number.
fn graph(n: usize, node: impl Fn(usize) -> String) -> String {
    let nodes: Vec<String> = (0..n).map(|at| format!("\"{at}\": {}", node(at))).collect();
    format!("{{{}}}", nodes.join(", "))
}

/// One node with `n` inputs.
fn inputs(n: usize, input: impl Fn(usize) -> String) -> String {
    let inputs: Vec<String> = (0..n).map(input).collect();
    format!("{{\"1\": {{\"class_type\": \"Save\", \"inputs\": {{{}}}}}}}", inputs.join(", "))
}

fn save(at: usize) -> String {
    format!(
        r#"{{"class_type": "Save", "inputs": {{"images": ["{at}", 0], "filename_prefix": "a\u0020{at}"}}}}"#
    )
}

fn parsed(text: &str) -> Workflow {
    Workflow::parse(text).unwrap()
}

/// A server with a long list, a wide class and dynamic inputs.
fn server(choices: usize) -> ObjectInfo {
    let list: Vec<String> = (0..choices).map(|at| format!("\"m{at}.safetensors\"")).collect();
    let list = list.join(", ");
    let kinds: Vec<String> = (0..choices).map(|at| format!("\"T{at}\"")).collect();
    let text = format!(
        r#"{{"Save": {{"input": {{"required": {{"images": ["IMAGE"], "filename_prefix": ["STRING"]}},
                "optional": {{"how": ["COMFY_DYNAMICCOMBO_V3", {{"options": [{{"key": "a"}}]}}],
                    "f": [["x"], {{"formats": {{"x": [["crf", "INT"]]}}}}]}}}}, "output": ["IMAGE"], "output_node": true}},
            "Load": {{"input": {{"required": {{"ckpt_name": [[{list}]], "model": ["MODEL"]}}}}, "output": [{kinds}, "MODEL"]}}}}"#,
        kinds = kinds.join(", "),
    );
    ObjectInfo::from_slice(text.as_bytes()).unwrap()
}

/// A check of this graph.
fn checked(text: &str, choices: usize, targets: Option<Vec<String>>) -> Work {
    let (workflow, info) = (parsed(text), server(choices));
    let options = Options { targets, ..Options::default() };
    Box::new(move || {
        let report = guard::check(&workflow, Some(&info), &options);
        black_box((
            report.kills(),
            report.may_be_sent(),
            report.iter().count(),
            report.missing_here().count(),
        ));
    })
}

const CHECK: &[&str] = &[
    "guard::check",
    "structure::check",
    "inputs::check_node",
    "links::check_node",
    "links::check_paths",
    "Graph::new",
    "Known::takes_only_links",
    "Report::may_be_sent",
    "Report::kills",
    "Report::iter",
    "Report::missing_here",
    "Report::add",
    "Report::sorted",
];

pub(super) fn table() -> Vec<Case> {
    vec![
        case(
            &[
                "Workflow::parse",
                "Workflow::parse_within",
                "Workflow::from_raw",
                "Workflow::from_raw_within",
                "Workflow::as_str",
                "Workflow::as_raw",
                "Workflow::into_raw",
                "Workflow::nodes",
                "Workflow::node",
            ],
            "many nodes",
            400,
            |n| {
                let text = graph(n, save);
                Box::new(move || {
                    let workflow = Workflow::parse_within(&text, &Limits::default()).unwrap();
                    let raw: Box<RawValue> = workflow.as_raw().to_owned();
                    let raw = Workflow::from_raw(raw).unwrap().into_raw();
                    black_box(Workflow::from_raw(raw).unwrap().node("0").map(|node| node.title().is_some()));
                    black_box(workflow.nodes().iter().filter_map(|node| node.input("images")).count());
                })
            },
        ),
        case(&["Workflow::parse"], "one node with many inputs and many fields", 1_000, |n| {
            let text = inputs(n, |at| format!("\"i\\n{at}\": [\"{at}\", 0]"));
            let fields: Vec<String> = (0..n).map(|at| format!("\"f{at}\": {{\"x\": 1}}")).collect();
            let fields = format!("{{\"1\": {{{}}}}}", fields.join(", "));
            Box::new(move || {
                let count = |node: &crate::workflow::Node<'_>| {
                    node.inputs().unwrap_or_default().iter().filter_map(|input| input.link()).count()
                };
                black_box(parsed(&text).nodes().iter().map(count).sum::<usize>());
                black_box(Workflow::parse(&fields).is_ok());
            })
        }),
        case(&["Workflow::parse"], "deep nesting and a long text", 20_000, |n| {
            let deep = format!("{{\"1\": {}{}}}", "[".repeat(n), "]".repeat(n));
            let long = inputs(1, |_| format!("\"text\": \"{}\"", "\\u00e9[".repeat(n)));
            Box::new(move || {
                black_box((Workflow::parse(&deep).is_ok(), Workflow::parse(&long).is_ok()));
            })
        }),
        case(
            &[
                "Workflow::index",
                "Index::new",
                "Index::nodes",
                "Index::node",
                "Index::position",
                "Index::input",
                "Index::replaceable",
                "Workflow::with_input",
                "Workflow::with_inputs",
            ],
            "an edit in every node",
            300,
            |n| {
                let workflow = parsed(&graph(n, save));
                let ids: Vec<String> = (0..n).map(|at| at.to_string()).collect();
                Box::new(move || {
                    let new = || to_raw_value("b").unwrap();
                    let edits = ids.iter().map(|id| (id.as_str(), "filename_prefix", new()));
                    black_box(workflow.with_inputs(edits).unwrap());
                    black_box(workflow.with_input("0", "filename_prefix", "b").unwrap());
                })
            },
        ),
        case(&["Workflow::with_inputs"], "edits of many inputs of one node", 500, |n| {
            let workflow = parsed(&inputs(n, |at| format!("\"i{at}\": {at}")));
            let names: Vec<String> = (0..n).map(|at| format!("i{at}")).collect();
            Box::new(move || {
                let edits = names.iter().map(|name| ("1", name.as_str(), to_raw_value("b").unwrap()));
                black_box(workflow.with_inputs(edits).unwrap());
            })
        }),
        case(&["Index::places"], "a name of dots", 5_000, |n| {
            let workflow = parsed(r#"{"....": {"inputs": {"a": 1}}, "": {"inputs": {}}}"#);
            let place = ".".repeat(n);
            Box::new(move || {
                let index = workflow.index();
                black_box(index.places(&place).filter_map(|(id, name)| index.input(id, name)).count());
            })
        }),
        case(CHECK, "many output nodes, each a target", 600, |n| {
            checked(&graph(n, save), 5, Some((0..n).map(|at| at.to_string()).collect()))
        }),
        case(CHECK, "ids that stand twice", 800, |n| {
            let twice = graph(n, save);
            checked(&format!("{}, {}", &twice[..twice.len() - 1], &twice[1..]), 5, None)
        }),
        case(CHECK, "inputs that stand twice", 800, |n| {
            checked(&inputs(2 * n, |at| format!("\"i{}\": 1", at / 2)), 5, None)
        }),
        case(CHECK, "inputs that are too large for a float", 1600, |n| {
            checked(&inputs(n, |at| format!("\"i{at}\": 1e999")), 5, None)
        }),
        case(CHECK, "one cycle through all nodes", 800, |n| {
            checked(&graph(n, |at| save((at + 1) % n)), 5, None)
        }),
        case(CHECK, "a long chain", 800, |n| {
            checked(
                &graph(n, |at| {
                    if at == 0 { r#"{"class_type": "Load", "inputs": {}}"#.into() } else { save(at - 1) }
                }),
                5,
                None,
            )
        }),
        case(CHECK, "one node that all link to", 800, |n| checked(&graph(n, |_| save(0)), 5, None)),
        case(CHECK, "one node that links to all", 1600, |n| {
            let nodes = graph(n, |_| r#"{"class_type": "Load", "inputs": {}}"#.into());
            let all: Vec<String> = (0..n).map(|at| format!("\"i{at}\": [\"{at}\", {at}]")).collect();
            let last =
                format!(", \"all\": {{\"class_type\": \"Save\", \"inputs\": {{{}}}}}}}", all.join(", "));
            checked(&format!("{}{last}", &nodes[..nodes.len() - 1]), n, None)
        }),
        case(CHECK, "long lists of choices, and nodes that choose", 400, |n| {
            let load = |at: usize| {
                format!(
                    r#"{{"class_type": "Load", "inputs": {{"ckpt_name": "x{at}.safetensors", "model": {at}}}}}"#
                )
            };
            checked(&graph(n, load), n, None)
        }),
        case(CHECK, "unknown classes", 800, |n| {
            checked(&graph(n, |at| format!(r#"{{"class_type": "Loed{at}", "inputs": {{}}}}"#)), n, None)
        }),
        case(CHECK, "undeclared inputs with dots", 1600, |n| {
            checked(&inputs(n, |at| format!("\"how{}{at}\": 1", ".x".repeat(5))), 5, None)
        }),
        case(CHECK, "one name of dots, one long class and one long value", 10000, |n| {
            let name = ".".repeat(n);
            let text = format!(
                r#"{{"1": {{"class_type": "Save", "inputs": {{"{name}": 1}}}}, "2": {{"class_type": "{name}", "inputs": {{}}}},
                    "3": {{"class_type": "Load", "inputs": {{"ckpt_name": "{name}.safetensors"}}}}}}"#
            );
            checked(&text, 20, None)
        }),
        case(&["guard::check_all"], "several servers, or none", 300, |n| {
            let (workflow, info) = (parsed(&graph(n, save)), server(n));
            Box::new(move || {
                black_box(guard::check_all(&workflow, [("a", &info), ("b", &info)], &Options::default()));
                black_box(guard::check(&workflow, None, &Options::default()));
            })
        }),
        case(&["request::check_text", "request::check_request"], "bare words in every input", 500, |n| {
            let text = inputs(n, |at| format!("\"i{at}\": NaN"));
            let body = format!("{{\"prompt\": {text}, \"client_id\": \"x\"}}");
            Box::new(move || {
                black_box(guard::check_text(&text, None, &Options::default()));
                black_box(guard::check_request(&body, None, &Options::default()).to_string());
            })
        }),
        case(
            &[
                "ObjectInfo::from_slice",
                "ObjectInfo::fits",
                "ObjectInfo::get",
                "ObjectInfo::contains",
                "ObjectInfo::iter",
                "ObjectInfo::len",
                "ObjectInfo::is_empty",
                "ObjectInfo::models",
            ],
            "many classes",
            300,
            |n| {
                let class = |at: usize| {
                    format!(
                        r#""C{at}": {{"input": {{"required": {{"ckpt_name": [["a{at}.pt", "b.pt"]]}}}}, "output": ["A"]}}"#
                    )
                };
                let text = format!("{{{}}}", (0..n).map(class).collect::<Vec<_>>().join(", "));
                Box::new(move || {
                    assert!(ObjectInfo::fits(text.as_bytes()));
                    let info = ObjectInfo::from_slice(text.as_bytes()).unwrap();
                    black_box((
                        info.models("checkpoints").len(),
                        info.get("C0").is_some(),
                        info.contains("C1"),
                    ));
                    black_box((info.len(), info.is_empty(), info.iter().count()));
                })
            },
        ),
        case(
            &["ObjectInfo::from_slice"],
            "one class with many inputs in an order of their own",
            1_000,
            |n| {
                let inputs: Vec<String> =
                    (0..n).map(|at| format!("\"i{at}\": [\"INT\", {{\"min\": 1}}]")).collect();
                let order: Vec<String> = (0..n).rev().map(|at| format!("\"i{at}\"")).collect();
                let text = format!(
                    r#"{{"X": {{"input": {{"required": {{{}}}}}, "input_order": {{"required": [{}]}}}}}}"#,
                    inputs.join(", "),
                    order.join(", ")
                );
                Box::new(move || {
                    black_box(ObjectInfo::from_slice(text.as_bytes()).unwrap());
                })
            },
        ),
        case(&["ObjectInfo::from_slice"], "growing rows with a long prefix", 100, |n| {
            let row = r#"["COMFY_AUTOGROW_V3", {"template": {"input": {"required": {"a": ["INT"]}}, "prefix": "pppppppppp", "max": 100}}]"#;
            let rows: Vec<String> = (0..n).map(|at| format!("\"r{at}\": {row}")).collect();
            let text = format!(r#"{{"X": {{"input": {{"required": {{{}}}}}}}}}"#, rows.join(", "));
            Box::new(move || {
                black_box(ObjectInfo::from_slice(text.as_bytes()).unwrap());
            })
        }),
    ]
}
