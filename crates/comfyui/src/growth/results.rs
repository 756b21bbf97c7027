//! Answers of a server: histories, results, refusals.

use std::hint::black_box;

use serde_json::value::RawValue;

use crate::outputs::{Limits, NodeOutput, Outputs};
use crate::prompt::Refusal;
use crate::{HistoryEntry, Outcome, lenient};
use remuda_testbed::growth::{Case, case};

fn raw(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap()
}

fn files(n: usize) -> String {
    let files: Vec<String> = (0..n)
        .map(|at| format!(r#"{{"filename": "{at}.png", "subfolder": "", "type": "output"}}"#))
        .collect();
    files.join(", ")
}

/// An entry with `n` nodes that left a file each, all of them from the cache.
fn entry(n: usize) -> HistoryEntry {
    let nodes: Vec<String> = (0..n).map(|at| format!("\"{at}\": {{\"images\": [{}]}}", files(1))).collect();
    let ids: Vec<String> = (0..n).map(|at| format!("\"{at}\"")).collect();
    let text = format!(
        r#"{{"prompt": [1, "x", {{}}, {{}}, [{ids}]], "outputs": {{{nodes}}}, "status": {{"status_str": "success", "completed": true,
            "messages": [["execution_start", {{"timestamp": 1}}], ["execution_cached", {{"nodes": [{ids}]}}],
                ["execution_success", {{"timestamp": 2}}]]}}}}"#,
        ids = ids.join(", "),
        nodes = nodes.join(", "),
    );
    lenient::from_str(&text).unwrap()
}

pub(super) fn table() -> Vec<Case> {
    vec![
        case(&["lenient::ascii_length"], "many short texts that grow", 20_000, |n| {
            let text = format!("[{}]", vec!["\"\u{1f600}\", 1e15"; n].join(","));
            Box::new(move || {
                black_box(lenient::ascii_length(&text));
            })
        }),
        case(
            &[
                "Outputs::from_history",
                "Outputs::from_history_within",
                "Outputs::files",
                "Outputs::texts",
                "Outputs::is_empty",
                "NodeOutput::from_ui",
                "NodeOutput::files",
            ],
            "many files of one node, and one flag too few",
            2_400,
            |n| {
                let flags = vec!["false"; n + 1].join(", ");
                let ui = raw(format!("{{\"animated\": [{flags}], \"images\": [{}]}}", files(n)));
                let whole = raw(format!("{{\"1\": {}}}", ui.get()));
                Box::new(move || {
                    black_box(NodeOutput::from_ui("1", &ui).files().count());
                    let outputs = Outputs::from_history_within(&whole, &Limits::default()).unwrap();
                    black_box((outputs.files().count(), outputs.texts().count(), outputs.is_empty()));
                    black_box(Outputs::from_history(&whole));
                })
            },
        ),
        case(
            &[
                "HistoryEntry::outputs",
                "HistoryEntry::outputs_fit",
                "HistoryEntry::cached_nodes",
                "HistoryEntry::duration_ms",
                "Outcome::judge",
                "Outcome::judge_within",
                "Tracker::history",
            ],
            "many nodes, all from the cache",
            2_400,
            |n| {
                let entry = entry(n);
                Box::new(move || {
                    black_box((entry.cached_nodes().len(), entry.duration_ms(), entry.outputs().nodes.len()));
                    let outcome = Outcome::judge_within(entry.clone(), &Limits::default());
                    black_box(outcome.cached_files().len());
                    black_box(Outcome::judge(entry.clone()));
                })
            },
        ),
        case(
            &["lenient::from_slice", "lenient::from_str", "lenient::replace_non_finite"],
            "bare words and texts that look like them",
            2_000,
            |n| {
                let text = format!("[{}]", vec!["NaN, \"-Inf\\\\\", -1"; n].join(", "));
                Box::new(move || {
                    black_box(lenient::from_str::<serde_json::Value>(&text).unwrap());
                })
            },
        ),
        case(&["Refusal::fmt"], "errors of many nodes", 300, |n| {
            let node = |at| {
                format!(
                    r#""{at}": {{"errors": [{{"message": "m"}}], "dependent_outputs": ["9"], "class_type": "A"}}"#
                )
            };
            let nodes: Vec<String> = (0..n).map(node).collect();
            let text =
                format!(r#"{{"error": {{"message": "no"}}, "node_errors": {{{}}}}}"#, nodes.join(", "));
            Box::new(move || {
                let refusal: Refusal = lenient::from_str(&text).unwrap();
                let told = refusal.to_string();
                assert!(told.len() < 10_000);
                black_box(told);
            })
        }),
    ]
}
