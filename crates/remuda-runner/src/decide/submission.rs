//! What a failed `POST /prompt` means.

use comfyui::Error;
use remuda_core::{Failure, FailureClass};
use serde_json::{Map, Value, json};

/// How many nodes of a refusal are kept.
const MOST_NODES: usize = 200;

/// How many errors and outputs of each.
const MOST_ERRORS: usize = 100;

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
            let told: Map<String, Value> = (refusal.node_errors.iter().take(MOST_NODES))
                .map(|(id, node)| {
                    let errors = &node.errors[..node.errors.len().min(MOST_ERRORS)];
                    let outputs = &node.dependent_outputs[..node.dependent_outputs.len().min(MOST_ERRORS)];
                    let told = json!({"errors": errors, "dependent_outputs": outputs, "class_type": node.class_type});
                    (id.clone(), told)
                })
                .collect();
            let details = json!({ "error": refusal.error, "node_errors": told });
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
