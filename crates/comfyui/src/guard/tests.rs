//! Behaviour of the whole check.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::arbitrary;

/// A small server: two images, a list, a model, an upload, a growing row.
fn server() -> ObjectInfo {
    let described = json!({
        "Empty": {"input": {"required": {
            "width": ["INT", {"min": 1, "max": 16384}], "seed": ["INT", {"min": 0, "max": u64::MAX}]},
            "optional": {"gain": ["FLOAT", {"min": 0.0, "max": 1.0}], "on": ["BOOLEAN", {}]}},
            "output": ["IMAGE", "MASK"]},
        "Scale": {"input": {"required": {"image": ["IMAGE"], "method": [["nearest", "bilinear", "area"]]}}, "output": ["IMAGE"]},
        "Load": {"input": {"required": {"image": [["fox.png"], {"image_upload": true}]}}, "output": ["IMAGE"]},
        "CheckpointLoaderSimple": {"input": {"required": {"ckpt_name": [["sd15.safetensors", "sdxl.safetensors"]]}},
            "output": ["MODEL", "CLIP", "VAE"]},
        "Save": {"input": {"required": {"images": ["IMAGE"], "filename_prefix": ["STRING", {}]}, "hidden": {"prompt": "PROMPT"}},
            "output": [], "output_node": true},
        "Combine": {"input": {"required": {"images": ["IMAGE"], "format": [["mp4"],
            {"formats": {"mp4": [["crf", "INT", {}]]}}]}}, "output": [], "output_node": true},
        "Batch": {"input": {"required": {"images": ["COMFY_AUTOGROW_V3", {"template": {
            "input": {"required": {"image": ["IMAGE", {}]}}, "prefix": "image", "min": 2, "max": 9}}]}}, "output": ["IMAGE"]},
    });
    ObjectInfo::from_slice(described.to_string().as_bytes()).unwrap()
}

/// The findings of a graph as `severity text`, against the small server.
fn found(graph: Value) -> Vec<String> {
    let workflow = Workflow::parse(graph.to_string()).unwrap();
    lines(&check(&workflow, Some(&server()), &Options::default()))
}

fn lines(report: &Report) -> Vec<String> {
    report.iter().map(|problem| format!("{:?} {problem}", problem.severity)).collect()
}

fn empty() -> Value {
    json!({"class_type": "Empty", "inputs": {"width": 64, "seed": u64::MAX}})
}

fn save(from: &str) -> Value {
    json!({"class_type": "Save", "inputs": {"images": [from, 0], "filename_prefix": "x"}})
}

/// The findings when one input of node 1 is set to a value and node 2 saves its image.
fn with_input(name: &str, value: Value) -> Vec<String> {
    let mut node = empty();
    node["inputs"][name] = value;
    found(json!({"1": node, "2": save("1")}))
}

#[test]
fn a_good_graph_has_no_findings() {
    let graph = json!({"1": empty(), "2": save("1")});
    let workflow = Workflow::parse(graph.to_string()).unwrap();
    let report = check(&workflow, Some(&server()), &Options::default());
    assert_eq!(lines(&report), [""; 0]);
    assert_eq!((report.accepted_outputs, report.refused_outputs), (vec!["2".to_owned()], vec![]));
}

#[test]
fn nodes_without_inputs_kill_wherever_they_are() {
    for inputs in [None, Some(Value::Null), Some(json!([])), Some(json!("x"))] {
        let mut orphan = json!({"class_type": "Scale"});
        if let Some(inputs) = inputs {
            orphan["inputs"] = inputs;
        }
        let found = found(json!({"1": empty(), "2": save("1"), "3": orphan}));
        assert!(found[0].starts_with("Kills node 3 (Scale): has"), "{found:?}");
    }
}

#[test]
fn misshapen_nodes_are_refused() {
    let found = found(json!({"1": 5, "2": {"inputs": {}}, "3": {"class_type": [1], "inputs": {}}}));
    assert_eq!(
        found,
        [
            "Refused node 1: is not an object with class_type and inputs",
            "Refused node 2: has no class_type",
            "Refused node 3: has a class_type that is not a text",
        ]
    );
}

#[test]
fn doubled_ids_are_refused_and_doubled_inputs_suspicious() {
    let text =
        r#"{"1": {"class_type": "A", "inputs": {}}, "1": {"class_type": "B", "inputs": {"a": 1, "a": 2}}}"#;
    let report = check(&Workflow::parse(text).unwrap(), None, &Options::default());
    assert_eq!(
        lines(&report),
        [
            "Refused node 1 (B): the id stands more than once; ComfyUI would silently run only the last one",
            "Suspicious node 1 (B) input a: stands more than once; only the last value counts",
        ]
    );
}

#[test]
fn links_are_followed() {
    let scale = |link: Value| json!({"class_type": "Scale", "inputs": {"image": link, "method": "area"}});
    let one = |link: Value| {
        let mut found = found(json!({"1": empty(), "2": scale(link), "3": save("2")}));
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    };
    let prefix = "Refused node 2 (Scale) input image: ";
    assert_eq!(one(json!(["9", 0])), format!("{prefix}links to node 9, which is not in the graph"));
    assert_eq!(
        one(json!(["1", 7])),
        format!("{prefix}links to output 7 of node 1 (Empty), which has outputs 0 to 1")
    );
    assert_eq!(one(json!(["1", 1])), format!("{prefix}takes IMAGE, but output 1 of node 1 (Empty) is MASK"));
    assert_eq!(
        one(json!([1, 0])),
        format!("{prefix}links to node 1 by number; node ids are texts: write [\"1\", 0]")
    );
    assert!(one(json!(["1", 0, 0])).starts_with(&format!("{prefix}a list is read as a link")));
    assert_eq!(
        one(json!(["1", 0.5])),
        format!("{prefix}links to node \"1\", but the output 0.5 is not a whole number")
    );
    assert_eq!(one(json!(["2", 0])), "Refused node 2 (Scale): depends on itself: 2 → 2");
}

#[test]
fn what_leads_nowhere_is_judged_mildly() {
    let orphan = |link: Value| json!({"class_type": "Scale", "inputs": {"image": link, "method": "magic"}});
    let found = found(
        json!({"1": empty(), "2": save("1"), "3": orphan(json!(["9", 0])), "4": orphan(json!(["4", 0]))}),
    );
    assert!(found.iter().all(|finding| finding.starts_with("Suspicious")), "{found:?}");
    assert_eq!(found.len(), 4, "{found:?}");
}

/// Found on a real 0.7.0: validation does not look at undeclared inputs, but the worker follows their links and
/// does not survive one that leads nowhere.
#[test]
fn an_undeclared_input_that_links_nowhere_kills() {
    let mut node = empty();
    node["inputs"]["extra"] = json!(["9", 0]);
    let found = found(json!({"1": node, "2": save("1")}));
    assert!(found[0].starts_with("Kills node 1 (Empty) input extra: links to node 9"), "{found:?}");
}

#[test]
fn values_are_judged_as_python_would() {
    assert!(with_input("gain", json!(1)).is_empty());
    let cases = [
        ("width", json!("wide"), "Refused node 1 (Empty) input width: takes a whole number, not \"wide\""),
        ("width", json!(null), "Refused node 1 (Empty) input width: takes a whole number, not null"),
        ("width", json!(0), "Refused node 1 (Empty) input width: 0 is less than 1, the smallest allowed"),
        (
            "width",
            json!("64"),
            "Suspicious node 1 (Empty) input width: takes a whole number; of \"64\" a text is taken as a number",
        ),
        (
            "width",
            json!(64.9),
            "Suspicious node 1 (Empty) input width: takes a whole number; of 64.9 the fraction is cut off",
        ),
        (
            "gain",
            json!(1.001),
            "Refused node 1 (Empty) input gain: 1.001 is more than 1.0, the largest allowed",
        ),
        (
            "gain",
            json!({"__value__": 5}),
            "Refused node 1 (Empty) input gain: 5 is more than 1.0, the largest allowed",
        ),
        (
            "on",
            json!("false"),
            "Suspicious node 1 (Empty) input on: takes true or false; \"false\", like any other text, counts as true",
        ),
        (
            "color",
            json!(1),
            "Suspicious node 1 (Empty) input color: is not an input of the class and goes unread",
        ),
    ];
    for (name, value, expected) in cases {
        assert_eq!(with_input(name, value), [expected]);
    }
    assert!(with_input("gain", json!("nan"))[0].starts_with("Kills"));
    let text =
        r#"{"1": {"class_type": "Empty", "inputs": {"width": 1, "seed": 18446744073709551616}}, "2": SAVE}"#;
    let workflow = Workflow::parse(text.replace("SAVE", &save("1").to_string())).unwrap();
    let report = check(&workflow, Some(&server()), &Options::default());
    assert_eq!(report.problems[0].kind, Kind::OutOfRange);
}

#[test]
fn infinity_in_valid_json_kills() {
    let text = r#"{"1": {"class_type": "X", "inputs": {"a": {"deep": [1e999]}}}}"#;
    let report = check(&Workflow::parse(text).unwrap(), None, &Options::default());
    assert_eq!((report.problems.len(), &report.problems[0].kind), (1, &Kind::NonFinite));
}

#[test]
fn missing_things_are_listed_with_what_there_is() {
    let loader = json!({"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "SD\\sdxl.ckpt"}});
    let workflow =
        json!({"1": empty(), "2": save("1"), "4": loader, "5": {"class_type": "Scal", "inputs": {}}});
    let workflow = Workflow::parse(workflow.to_string()).unwrap();
    let report = check(&workflow, Some(&server()), &Options::default());
    let missing: Vec<_> = report.missing_here().map(|problem| problem.kind.clone()).collect();
    assert_eq!(
        missing,
        [
            Kind::UnknownClass { nearest: vec!["Scale".to_owned()] },
            Kind::MissingModel {
                folder: Some("checkpoints".to_owned()),
                model: "SD\\sdxl.ckpt".to_owned(),
                available: vec!["sdxl.safetensors".to_owned(), "sd15.safetensors".to_owned()],
                total: 2,
            },
        ]
    );
    assert!(report.accepted_outputs.is_empty(), "an unknown class refuses the whole prompt");
}

#[test]
fn files_are_checked_where_the_list_can_tell() {
    let load = |file: &str| json!({"class_type": "Load", "inputs": {"image": file}});
    let findings = |file: &str| found(json!({"1": load(file), "2": save("1")})).len();
    let counts = ["fox.png", "dog.png", "sub/dog.png", "dog.png [output]"].map(findings);
    assert_eq!(counts, [0, 1, 0, 0]);
    let graph = Workflow::parse(json!({"1": load("dog.png"), "2": save("1")}).to_string()).unwrap();
    let later = Options { check_files: false, ..Options::default() };
    assert!(check(&graph, Some(&server()), &later).may_be_sent());
}

#[test]
fn growing_rows_are_checked_member_by_member() {
    let batch =
        json!({"class_type": "Batch", "inputs": {"images.image0": ["1", 0], "images.image1": ["1", 1]}});
    let found = found(json!({"1": empty(), "2": batch, "3": save("2")}));
    assert_eq!(
        found,
        ["Refused node 2 (Batch) input images.image1: takes IMAGE, but output 1 of node 1 (Empty) is MASK"]
    );
}

#[test]
fn inputs_of_a_format_are_no_strangers() {
    let combine = json!({"class_type": "Combine", "inputs":
        {"images": ["1", 0], "format": "mp4", "crf": 20, "pix_fmt": "x", "videopreview": {}}});
    let found = found(json!({"1": empty(), "2": combine}));
    assert_eq!(
        found,
        ["Suspicious node 2 (Combine) input pix_fmt: is not an input of the class and goes unread"]
    );
}

#[test]
fn a_prompt_may_be_accepted_in_part() {
    let bad = json!({"class_type": "Empty", "inputs": {"width": 0, "seed": 1}});
    let graph = json!({"1": empty(), "2": save("1"), "3": bad, "4": save("3")});
    let workflow = Workflow::parse(graph.to_string()).unwrap();
    let report = check(&workflow, Some(&server()), &Options::default());
    assert!(!report.may_be_sent());
    assert_eq!(
        (report.accepted_outputs, report.refused_outputs),
        (vec!["2".to_owned()], vec!["4".to_owned()])
    );
    let first = Options { targets: Some(vec!["2".to_owned()]), ..Options::default() };
    let report = check(&workflow, Some(&server()), &first);
    assert!(report.may_be_sent() && report.accepted_outputs == ["2"]);
}

/// A real 0.7.0 answers 200 with empty `node_errors` here, and leaves the output out without a word.
#[test]
fn a_cycle_beside_a_good_output_is_not_forgotten() {
    let scale = |from: &str| json!({"class_type": "Scale", "inputs": {"image": [from, 0], "method": "area"}});
    let graph = json!({"1": empty(), "2": save("1"), "3": scale("4"), "4": scale("3"), "5": save("4")});
    let workflow = Workflow::parse(graph.to_string()).unwrap();
    let report = check(&workflow, Some(&server()), &Options::default());
    assert_eq!(lines(&report), ["Refused node 3 (Scale): depends on itself: 3 → 4 → 3"]);
    assert_eq!(
        (report.accepted_outputs, report.refused_outputs),
        (vec!["2".to_owned()], vec!["5".to_owned()])
    );
}

#[test]
fn something_must_come_out() {
    let nothing = found(json!({"1": empty()}));
    assert!(nothing[0].starts_with("Refused the graph has no output node"), "{nothing:?}");
    let workflow = Workflow::parse(json!({"1": empty(), "2": save("1")}).to_string()).unwrap();
    let wrong = Options { targets: Some(vec!["1".to_owned()]), ..Options::default() };
    let report = check(&workflow, Some(&server()), &wrong);
    assert_eq!(report.problems[0].kind, Kind::NoOutputs);
}

#[test]
fn bare_words_are_found_in_their_inputs() {
    let text = r#"{"prompt": {"1": {"class_type": "A", "inputs": {"x": Infinity, "y": "NaN", "z": [[NaN]]}, "_meta": NaN}},
                   "client_id": "c", "extra_data": {"w": -Infinity}}"#;
    let report = check_request(text, None, &Options::default());
    let places: Vec<_> = report
        .problems
        .iter()
        .filter(|p| p.kind == Kind::NonFinite)
        .map(|p| (p.node_id.clone(), p.input.clone()))
        .collect();
    let node = Some("1".to_owned());
    assert_eq!(
        places,
        [
            (node.clone(), Some("x".to_owned())),
            (node.clone(), Some("z".to_owned())),
            (node, None),
            (None, None)
        ]
    );
}

#[test]
fn requests_that_are_none_are_refused() {
    for body in
        ["", "{not json", "[]", "null", "\"text\"", "{}", "{\"prompt\": []}", "{\"prompt\": {}}", "\u{0}"]
    {
        let report = check_request(body, None, &Options::default());
        assert!(!report.may_be_sent(), "{body}");
    }
    let ui = r#"{"prompt": {"last_node_id": 4, "nodes": [], "links": []}, "client_id": "c"}"#;
    assert!(check_request(ui, None, &Options::default()).to_string().contains("API format"));
}

#[test]
fn what_goes_around_the_graph_is_checked() {
    let severity = |problem: Option<Problem>| problem.map(|problem| problem.severity);
    use Severity::{Kills, Refused, Suspicious};
    for (value, expected) in [
        (json!({}), Some(Kills)),
        (json!([]), Some(Kills)),
        (json!(""), Some(Suspicious)),
        (json!(null), Some(Suspicious)),
        (json!(5), Some(Suspicious)),
        (json!("x"), None),
    ] {
        assert_eq!(severity(check_client_id(&value)), expected, "client_id {value}");
    }
    for (value, expected) in [
        (json!(5), None),
        (json!("5"), Some(Suspicious)),
        (json!("abc"), Some(Refused)),
        (json!(null), Some(Refused)),
        (json!("inf"), Some(Kills)),
    ] {
        assert_eq!(severity(check_number(&value)), expected, "number {value}");
    }
    // All of these made /api/jobs of a real 0.7.0 answer 500 for everybody.
    for pnginfo in [json!(null), json!([]), json!("x"), json!({"workflow": null}), json!({"workflow": []})] {
        assert_eq!(severity(check_extra_data(&json!({"extra_pnginfo": pnginfo}))), Some(Kills), "{pnginfo}");
    }
    assert_eq!(severity(check_extra_data(&json!({"extra_pnginfo": {}}))), None);
    assert_eq!(severity(check_extra_data(&json!(null))), Some(Refused));
    assert_eq!(severity(check_prompt_id(&json!("abc"))), Some(Refused));
    assert_eq!(severity(check_targets(&json!(["1"]))), None);
}

/// A chain of nodes, each linked to the one before.
fn chain(length: usize, last: Value) -> Value {
    let link = |at: usize| json!({"class_type": "Scale", "inputs": {"image": [at.to_string(), 0], "method": "area"}});
    let mut graph: serde_json::Map<_, _> = (1..length).map(|at| (at.to_string(), link(at - 1))).collect();
    graph.insert("0".to_owned(), last);
    graph.insert("out".to_owned(), save(&(length - 1).to_string()));
    Value::Object(graph)
}

#[test]
fn long_chains_kill() {
    let kinds = |length| {
        let workflow = Workflow::parse(chain(length, empty()).to_string()).unwrap();
        let report = check(&workflow, Some(&server()), &Options::default());
        report.problems.into_iter().map(|problem| problem.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(links::MAX_CHAIN - 1), []);
    assert_eq!(kinds(links::MAX_CHAIN), [Kind::ChainTooLong { length: links::MAX_CHAIN + 1 }]);
}

/// Ten thousand nodes in the shapes that would make a careless walk slow or deep.
#[test]
fn large_graphs_are_checked_quickly() {
    const NODES: usize = 10_000;
    let node = |inputs: Value| json!({"class_type": "Nearly", "inputs": inputs});
    let graph = |inputs: &dyn Fn(usize) -> Value| {
        Value::Object((0..NODES).map(|at| (at.to_string(), node(inputs(at)))).collect())
    };
    let first = |at: usize| json!([at.saturating_sub(1).to_string(), 0]);
    let shapes = [
        ("a chain", chain(NODES, empty())),
        ("one great cycle", chain(NODES, json!({"class_type": "Scale", "inputs": {"image": ["9999", 0]}}))),
        (
            "a chain of nodes that also need themselves",
            graph(&|at| json!({"a": first(at), "b": [at.to_string(), 0]})),
        ),
        ("pairs", graph(&|at| json!({"a": [(at ^ 1).to_string(), 0]}))),
        ("all on the first", graph(&|_| json!({"a": ["0", 0], "b": ["0", 1]}))),
        (
            "the first on all",
            graph(&|at| match at {
                0 => {
                    Value::Object((1..NODES).map(|to| (to.to_string(), json!([to.to_string(), 0]))).collect())
                }
                _ => json!({"a": [at.saturating_sub(2).to_string(), 0]}),
            }),
        ),
        ("all dangling", graph(&|at| json!({"a": [format!("x{at}"), 0]}))),
    ];
    let info = server();
    for (shape, graph) in shapes {
        let workflow = Workflow::parse(graph.to_string()).unwrap();
        let start = Instant::now();
        let report = check(&workflow, Some(&info), &Options::default());
        assert!(!report.may_be_sent(), "{shape}");
        assert!(start.elapsed() < Duration::from_secs(5), "{shape} took {:?}", start.elapsed());
    }
}

const WORDS: &[&str] = &[
    "1",
    "2",
    "3",
    "class_type",
    "inputs",
    "prompt",
    "client_id",
    "extra_data",
    "extra_pnginfo",
    "workflow",
    "number",
    "Empty",
    "Scale",
    "Load",
    "Save",
    "Batch",
    "CheckpointLoaderSimple",
    "images",
    "image",
    "width",
    "seed",
    "method",
    "images.image0",
    "__value__",
    "nodes",
    "_meta",
    "title",
    "partial_execution_targets",
    "prompt_id",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_json_is_checked(graph in arbitrary::json(WORDS)) {
        let info = server();
        let text = graph.to_string();
        check_text(&text, Some(&info), &Options::default());
        check_request(&text, Some(&info), &Options::default());
        check_request(json!({"prompt": graph}).to_string(), Some(&info), &Options::default());
    }

    #[test]
    fn any_nodes_are_checked(nodes in prop::collection::vec(
        (0..4_usize, prop::sample::select(&["Empty", "Scale", "Load", "Save", "Batch", "Other"][..]), arbitrary::json(WORDS)), 0..6)
    ) {
        let graph: serde_json::Map<_, _> = nodes
            .into_iter()
            .map(|(id, class, inputs)| (id.to_string(), json!({"class_type": class, "inputs": inputs})))
            .collect();
        let text = Value::Object(graph).to_string();
        let report = check_text(&text, Some(&server()), &Options::default());
        // Nothing is both refused as a whole and accepted in part.
        if report.problems.iter().any(|problem| matches!(problem.kind, Kind::UnknownClass { .. })) {
            prop_assert!(report.accepted_outputs.is_empty());
        }
    }

    #[test]
    fn any_bytes_are_checked(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        check_text(&bytes, None, &Options::default());
        check_request(&bytes, None, &Options::default());
    }
}

#[test]
fn very_many_findings_are_counted_and_none_that_matters_is_lost() {
    // Dangling links first, one deadly node at the end, and a class that is not there among many that are not there either.
    let mut graph: serde_json::Map<String, Value> =
        (0..1_000).map(|at| (format!("d{at}"), save("nowhere"))).collect();
    graph.extend((0..1_000).map(|at| (format!("u{at}"), json!({"class_type": "Nope", "inputs": {}}))));
    graph.insert("other".to_owned(), json!({"class_type": "Other", "inputs": {}}));
    graph.insert("deadly".to_owned(), json!({"class_type": "Save"}));
    let workflow = Workflow::parse(Value::Object(graph).to_string()).unwrap();
    let report = check(&workflow, Some(&server()), &Options::default());
    assert!(report.kills() && report.problems[0].node_id.as_deref() == Some("deadly"));
    let missing: std::collections::BTreeSet<_> =
        report.missing_here().filter_map(|problem| problem.class_type.as_deref()).collect();
    assert_eq!(missing.into_iter().collect::<Vec<_>>(), ["Nope", "Other"]);
    assert!(report.iter().count() < 500 && report.unlisted > 1_500, "{}", report.unlisted);
    assert_eq!(report.refused_outputs.len(), 1_001, "the verdict knows them all");
    assert!(report.to_string().ends_with(&format!("and {} more", report.unlisted)));
}

#[test]
fn messages_are_not_longer_than_anybody_reads() {
    let long = "x".repeat(100_000);
    let graph = json!({"1": {"class_type": long, "inputs": {}}, "2": {"class_type": "Empty",
        "inputs": {"width": long, "on": long, "seed": 1}}});
    let report = check(&Workflow::parse(graph.to_string()).unwrap(), Some(&server()), &Options::default());
    assert!(!report.problems.is_empty());
    for problem in report.iter() {
        assert!(problem.message.len() < 2_100, "{}", problem.message.len());
    }
}
