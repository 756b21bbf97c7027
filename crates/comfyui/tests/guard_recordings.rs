//! The guard against the recordings of a real ComfyUI: what was refused must be foreseen, what killed must be
//! recognised, and what was accepted and ran must not be held up.

#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use comfyui::guard::{self, Kind, Options, Severity};
use comfyui::object_info::ObjectInfo;
use serde_json::Value;

/// Prompts after which the real server was dead, mute, or answered 500 to everybody.
const DEADLY: [&str; 6] = [
    "poison_client_id_list",
    "poison_client_id_object",
    "poison_extra_pnginfo_text",
    "poison_number_nan",
    "poison_orphan_inputs_null",
    "poison_orphan_without_inputs",
];

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join("comfyui-sim")
}

fn object_info() -> ObjectInfo {
    let json = std::fs::read(repository().join("data/object_info.json")).unwrap();
    ObjectInfo::from_slice(&json).unwrap()
}

/// One recorded submission.
struct Submission {
    scenario: String,
    note: String,
    body: String,
    status: u64,
    answer: Value,
}

/// Every `POST /prompt` of every recording whose body was kept as text or JSON.
fn submissions() -> Vec<Submission> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(repository().join("tests/recordings")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let recording: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let scenario = path.file_stem().unwrap().to_string_lossy().into_owned();
        for exchange in recording["exchanges"].as_array().into_iter().flatten() {
            let request = &exchange["request"];
            let is_prompt = matches!(request["path"].as_str(), Some("/prompt" | "/api/prompt"));
            let body = match (request.get("body"), request["body_text"].as_str()) {
                (Some(body), _) => body.to_string(),
                (None, Some(text)) => text.to_owned(),
                (None, None) => continue,
            };
            if is_prompt && request["method"] == "POST" {
                found.push(Submission {
                    scenario: scenario.clone(),
                    note: exchange["note"].as_str().unwrap_or_default().to_owned(),
                    body,
                    status: exchange["response"]["status"].as_u64().unwrap_or_default(),
                    answer: exchange["response"]["body"].clone(),
                });
            }
        }
    }
    assert!(found.len() > 100, "the recordings hold many submissions, not {}", found.len());
    found
}

/// Uploaded files of a recording are not in the node descriptions, which were fetched before.
fn options(submission: &Submission) -> Options {
    Options { check_files: submission.scenario == "validation_errors", ..Options::default() }
}

/// The same prompt id with the same number is refused by the queue, not for what the prompt is.
fn refused_for_its_own_sake(submission: &Submission) -> bool {
    let twice =
        ["poison_duplicate_id_and_number", "prompt_id_client_chosen"].contains(&submission.scenario.as_str());
    submission.status >= 400 && !(twice && submission.status == 500) && submission.status != 413
}

#[test]
fn every_refusal_is_foreseen() {
    let info = object_info();
    let mut seen = 0;
    for submission in submissions().iter().filter(|submission| refused_for_its_own_sake(submission)) {
        seen += 1;
        let report = guard::check_request(&submission.body, Some(&info), &options(submission));
        let place = format!("{} / {}: {}", submission.scenario, submission.note, submission.body);
        assert!(!report.may_be_sent(), "not foreseen: {place}");
        // The nodes that the server blames are among those that the guard blames.
        let blamed: BTreeSet<&str> =
            report.problems.iter().filter_map(|problem| problem.node_id.as_deref()).collect();
        for node in submission.answer["node_errors"].as_object().into_iter().flat_map(|errors| errors.keys())
        {
            assert!(blamed.contains(node.as_str()), "node {node} is not blamed: {place}\n{report}");
        }
        if submission.answer["error"]["type"] == "prompt_outputs_failed_validation" {
            assert!(report.accepted_outputs.is_empty(), "wholly refused, not in part: {place}\n{report}");
        }
    }
    assert!(seen > 40, "only {seen} refusals");
}

#[test]
fn every_killer_is_recognised() {
    let info = object_info();
    let submissions = submissions();
    for scenario in DEADLY {
        let mut of_scenario = submissions.iter().filter(|submission| submission.scenario == scenario);
        let kills =
            of_scenario.any(|one| guard::check_request(&one.body, Some(&info), &options(one)).kills());
        assert!(kills, "{scenario}");
    }
}

#[test]
fn what_ran_is_not_held_up() {
    let info = object_info();
    let mut seen = 0;
    for submission in submissions() {
        let clean = submission.answer["node_errors"].as_object().is_some_and(|errors| errors.is_empty());
        // The oldest version ignores targets, and ran what the others refuse.
        let ignores_targets = submission.scenario == "version_0_3_30"
            && submission.note.starts_with("partial_execution_targets");
        if submission.status != 200 || !clean || ignores_targets {
            continue;
        }
        seen += 1;
        let report = guard::check_request(&submission.body, Some(&info), &options(&submission));
        let place = format!("{} / {}: {}\n{report}", submission.scenario, submission.note, submission.body);
        for problem in &report.problems {
            let excused = match problem.kind {
                // Accepted by 0.7.0, refused by newer versions.
                Kind::PromptId => problem.severity == Severity::Refused,
                // Accepted, with consequences for everybody.
                Kind::NonFinite | Kind::NoInputs => problem.severity == Severity::Kills,
                _ => problem.severity == Severity::Kills && DEADLY.contains(&submission.scenario.as_str()),
            };
            assert!(excused, "held up: {place}");
        }
        assert!(!report.accepted_outputs.is_empty(), "ran, but the guard accepts no output: {place}");
    }
    assert!(seen > 60, "only {seen} accepted prompts");
}

#[test]
fn partial_acceptance_is_foreseen() {
    let info = object_info();
    let mut seen = 0;
    for submission in submissions() {
        let errors = submission.answer["node_errors"].as_object();
        let Some(errors) = errors.filter(|errors| submission.status == 200 && !errors.is_empty()) else {
            continue;
        };
        seen += 1;
        let report = guard::check_request(&submission.body, Some(&info), &options(&submission));
        assert!(!report.accepted_outputs.is_empty());
        let left_out: BTreeSet<_> = errors
            .values()
            .flat_map(|error| error["dependent_outputs"].as_array().into_iter().flatten())
            .filter_map(Value::as_str)
            .collect();
        let foreseen: BTreeSet<_> = report.refused_outputs.iter().map(String::as_str).collect();
        assert_eq!(foreseen, left_out, "{}", submission.note);
    }
    assert!(seen > 0);
}
