//! Whether a graph may go to a worker: what would kill a ComfyUI never does.

use comfyui::guard::{self, Kind, Problem, Report};
use comfyui::{ObjectInfo, Workflow};
use remuda_core::{Capabilities, Failure, FailureClass, Requirements};
use serde_json::{Value, json};

/// How many problems a failure names.
const MOST_PROBLEMS: usize = 100;

/// What to do with a graph.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// It may be sent. ComfyUI itself is the judge of the rest, in its own words.
    Send,
    /// This worker lacks something that another may have.
    Lacks(Requirements),
    /// It would do lasting harm.
    Refuse(Box<Failure>),
}

/// Judges a graph for a worker that describes its nodes with `info` and offers `offer`.
pub(crate) fn judge(workflow: &Workflow, info: &ObjectInfo, offer: &Capabilities) -> Verdict {
    // Files are placed after this, and the list of them is as old as the description.
    let options = guard::Options { check_files: false, ..guard::Options::default() };
    let report = guard::check(workflow, Some(info), &options);
    if report.kills() {
        return Verdict::Refuse(Box::new(refusal(&report)));
    }
    let mut lacks = Requirements::default();
    for problem in report.missing_here() {
        match &problem.kind {
            Kind::UnknownClass { .. } => lacks.nodes.extend(problem.class_type.clone()),
            Kind::MissingModel { model, .. } => {
                lacks.models.insert(model.clone());
            }
            _ => {}
        }
    }
    // A requirement that this worker seems to meet would bring the task back to it again and again: a model of that
    // name in another folder, for instance. Then ComfyUI says what is wrong.
    if lacks.is_empty() || lacks.satisfied_by(offer) { Verdict::Send } else { Verdict::Lacks(lacks) }
}

/// A failure that names what would kill.
pub(crate) fn refusal(report: &Report) -> Failure {
    let killing = report.problems.iter().filter(|problem| problem.severity == guard::Severity::Kills);
    let first = killing.clone().next();
    let message = first.map_or_else(|| "the graph cannot be sent".to_owned(), ToString::to_string);
    Failure {
        class: FailureClass::Validation,
        message: format!("the graph was not sent, because it would harm ComfyUI: {message}"),
        node_id: first.and_then(|problem| problem.node_id.clone()),
        details: Some(
            json!({ "problems": killing.take(MOST_PROBLEMS).map(shown).collect::<Vec<_>>() }).into(),
        ),
    }
}

fn shown(problem: &Problem) -> Value {
    json!({
        "node_id": problem.node_id,
        "class_type": problem.class_type,
        "input": problem.input,
        "message": problem.message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> ObjectInfo {
        ObjectInfo::from_slice(
            br#"{"CheckpointLoaderSimple": {"input": {"required": {"ckpt_name": [["a.safetensors"]]}}, "output": ["MODEL"]},
                 "Save": {"input": {"required": {"model": ["MODEL"]}}, "output_node": true}}"#,
        )
        .unwrap()
    }

    fn check(graph: &str, models: &[&str]) -> Verdict {
        let offer = Capabilities {
            nodes: ["CheckpointLoaderSimple", "Save"].map(str::to_owned).into(),
            models: models.iter().map(|&model| model.to_owned()).collect(),
            ..Capabilities::default()
        };
        judge(&Workflow::parse(graph).unwrap(), &info(), &offer)
    }

    fn loader(model: &str) -> String {
        format!(
            r#"{{"1": {{"class_type": "CheckpointLoaderSimple", "inputs": {{"ckpt_name": "{model}"}}}},
                "2": {{"class_type": "Save", "inputs": {{"model": ["1", 0]}}}}}}"#
        )
    }

    #[test]
    fn a_good_graph_goes_and_a_deadly_one_does_not() {
        assert_eq!(check(&loader("a.safetensors"), &["a.safetensors"]), Verdict::Send);
        let Verdict::Refuse(failure) = check(r#"{"7": {"class_type": "Save"}}"#, &[]) else { panic!() };
        assert_eq!((failure.class, failure.node_id.as_deref()), (FailureClass::Validation, Some("7")));
        assert!(failure.details.unwrap().read()["problems"][0]["message"].is_string());
    }

    #[test]
    fn what_is_missing_here_is_named() {
        let Verdict::Lacks(lacks) = check(&loader("b.safetensors"), &["a.safetensors"]) else { panic!() };
        assert_eq!(lacks.to_string(), "model b.safetensors");
        let graph = r#"{"1": {"class_type": "Elsewhere", "inputs": {}}}"#;
        let Verdict::Lacks(lacks) = check(graph, &[]) else { panic!() };
        assert_eq!(lacks.to_string(), "node Elsewhere");
    }

    #[test]
    fn what_would_come_back_at_once_is_left_to_comfyui() {
        assert_eq!(check(&loader("b.safetensors"), &["a.safetensors", "b.safetensors"]), Verdict::Send);
    }
}
