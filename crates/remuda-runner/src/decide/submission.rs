//! What a failed `POST /prompt` means.

use comfyui::{Error, Problem};
use remuda_core::{Failure, FailureClass};
use serde_json::{Map, Value, json};

/// How many nodes of a refusal are kept.
const MOST_NODES: usize = 200;

/// How many errors and outputs of each.
const MOST_ERRORS: usize = 100;

/// How many bytes of what ComfyUI adds to an error are kept: lists of models, say.
const MOST_INFO: usize = 64 << 10;

/// The same for all errors together.
const MOST_TOLD: usize = 128 << 10;

/// How long names and words may be.
const NAME: usize = 1 << 10;
const WORDS: usize = 2 << 10;

/// What a failed `POST /prompt` means.
#[derive(Debug, PartialEq)]
pub(crate) enum NotSent {
    /// ComfyUI, or the guard, refused the graph. Nothing is queued.
    Refused(Box<Failure>),
    /// Nothing was queued: it may be tried again.
    NotReached {
        /// For people.
        why: String,
        /// What somebody answered instead, if anybody did.
        status: Option<u16>,
    },
    /// It may be queued, now or in a moment: look before anything else.
    Doubt(String),
}

/// Reads it from the error.
pub(crate) fn judge(error: &Error) -> NotSent {
    match error {
        Error::Refused(refusal) => {
            let node_id = refusal.node_errors.keys().next().cloned();
            let mut told = Map::new();
            let mut room = MOST_TOLD;
            for (id, node) in refusal.node_errors.iter().take(MOST_NODES) {
                let outputs = &node.dependent_outputs[..node.dependent_outputs.len().min(MOST_ERRORS)];
                let mut errors = Vec::new();
                for problem in node.errors.iter().take(MOST_ERRORS) {
                    errors.push(self::told(problem, &mut room));
                }
                let node =
                    json!({"errors": errors, "dependent_outputs": outputs, "class_type": node.class_type});
                told.insert(id.clone(), node);
            }
            let details = json!({ "error": self::told(&refusal.error, &mut room), "node_errors": told });
            let message = format!("ComfyUI refused the workflow: {refusal}");
            NotSent::Refused(Box::new(Failure {
                class: FailureClass::Validation,
                message,
                node_id,
                details: Some(details.into()),
            }))
        }
        Error::Uncertain { source, .. } => NotSent::Doubt(source.to_string()),
        Error::Unreachable { sent: false, .. } => {
            NotSent::NotReached { why: error.to_string(), status: None }
        }
        Error::Status { status, .. } if status.as_u16() == 413 => refused(FailureClass::Validation, error),
        // It was looked up and is not there: ComfyUI's way to refuse what it cannot read.
        Error::Status { status, .. } if status.is_server_error() => {
            let message = format!("ComfyUI did not take the workflow: {error}");
            let details = Some(json!({ "status": status.as_u16() }).into());
            NotSent::Refused(Box::new(Failure { details, ..Failure::new(FailureClass::Execution, message) }))
        }
        // A proxy in front that refuses, say. Nothing was queued.
        Error::Status { status, .. } => {
            NotSent::NotReached { why: error.to_string(), status: Some(status.as_u16()) }
        }
        Error::NotFound { .. } => NotSent::NotReached { why: error.to_string(), status: Some(404) },
        Error::Unsupported { .. } | Error::InvalidUrl { .. } => refused(FailureClass::Execution, error),
        _ => NotSent::Doubt(error.to_string()),
    }
}

/// An error of a refusal. ComfyUI repeats values that it does not like: when these are too long they are left out, and what is
/// said of them stays.
fn told(problem: &Problem, room: &mut usize) -> Value {
    let text = problem.extra_info.to_string();
    let long = text.len() > (*room).min(MOST_INFO);
    *room -= text.len().min(*room).min(if long { 0 } else { MOST_INFO });
    let info = match long {
        true => {
            json!({"input_name": problem.input_name().map(|name| cut(name, NAME)), "cut": {"bytes": text.len()}})
        }
        false => problem.extra_info.clone(),
    };
    json!({
        "type": cut(&problem.kind, NAME),
        "message": cut(&problem.message, WORDS),
        "details": cut(&problem.details, WORDS),
        "extra_info": info,
    })
}

/// The beginning of a text that may be of any length.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

fn refused(class: FailureClass, error: &Error) -> NotSent {
    NotSent::Refused(Box::new(Failure::new(class, format!("ComfyUI did not take the workflow: {error}"))))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_refusal_keeps_the_words_of_comfyui() {
        let refusal = serde_json::from_value(json!({
            "error": {"type": "prompt_outputs_failed_validation", "message": "Prompt outputs failed validation", "details": "", "extra_info": {}},
            "node_errors": {"4": {"errors": [{"type": "value_not_in_list", "message": "Value not in list", "details": "x", "extra_info": {}}],
                                   "dependent_outputs": ["9"], "class_type": "CheckpointLoaderSimple"}},
        }));
        let NotSent::Refused(failure) = judge(&Error::Refused(refusal.unwrap())) else { panic!() };
        assert_eq!((failure.class, failure.node_id.as_deref()), (FailureClass::Validation, Some("4")));
        let details = failure.details.unwrap().read();
        assert_eq!(details["node_errors"]["4"]["errors"][0]["type"], "value_not_in_list");
        assert_eq!(details["error"]["type"], "prompt_outputs_failed_validation");
    }

    #[test]
    fn values_that_comfyui_repeats_are_left_out_when_they_are_long() {
        let problem = |input: &str, bytes: usize| {
            let info = json!({"input_name": input, "received_value": "v".repeat(bytes)});
            json!({"type": "invalid_input_type", "message": "m".repeat(bytes), "details": input, "extra_info": info})
        };
        let many: Vec<Value> = (0..50).map(|n| problem(&format!("i{n}"), 60_000)).collect();
        let refusal = serde_json::from_value(json!({
            "error": problem("", 1 << 20),
            "node_errors": {"1": {"errors": [problem("width", 2 << 20), problem("height", 10)], "class_type": "A"},
                            "2": {"errors": many, "class_type": "B"}},
        }));
        let NotSent::Refused(failure) = judge(&Error::Refused(refusal.unwrap())) else { panic!() };
        let details = failure.details.unwrap();
        assert!(details.get().len() < remuda_core::MOST_DETAILS + (100 << 10), "{}", details.get().len());
        let details = details.read();
        let errors = &details["node_errors"]["1"]["errors"];
        assert_eq!(errors[0]["extra_info"]["input_name"], "width");
        assert!(errors[0]["extra_info"]["cut"]["bytes"].as_u64() > Some(2 << 20));
        assert_eq!(errors[1]["extra_info"]["received_value"], "vvvvvvvvvv");
        assert_eq!(details["node_errors"]["2"]["errors"][49]["details"], "i49", "all are told");
        assert!(failure.message.len() < 128 << 10, "{}", failure.message.len());
    }

    #[test]
    fn without_an_answer_it_may_be_queued() {
        let late = Error::TimedOut { what: "POST /prompt".into(), after: Duration::from_secs(1) };
        assert!(matches!(judge(&late), NotSent::Doubt(_)));
        let uncertain = Error::Uncertain { prompt_id: "x".into(), source: Box::new(late) };
        assert!(matches!(judge(&uncertain), NotSent::Doubt(_)));
        let unreachable = |sent| Error::Unreachable {
            url: String::new(),
            method: "POST",
            path: String::new(),
            sent,
            source: "refused".into(),
        };
        assert!(matches!(judge(&unreachable(false)), NotSent::NotReached { status: None, .. }));
        assert!(matches!(judge(&unreachable(true)), NotSent::Doubt(_)));
    }
}
