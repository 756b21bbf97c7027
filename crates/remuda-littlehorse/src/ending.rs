//! From the end of a task to what the server is told, and with it to whether the task is tried again.

use littlehorse::{Ending, Value};
use remuda_core::transition::Ending as Ended;
use remuda_core::{Failure, FailureClass, JsonText, TaskResult};
use remuda_runner::source::foreign::{Delivery, DeliveryEnding};
use serde_json::json;

use crate::output::{self, Places};
use crate::refusal;

/// ComfyUI, or the guard in front of it, refused the graph.
pub(crate) const REJECTED: &str = "comfyui-prompt-rejected";

/// A node raised an exception.
pub(crate) const FAILED: &str = "comfyui-execution-failed";

/// It ran, and there is nothing to return.
pub(crate) const NO_OUTPUTS: &str = "comfyui-no-outputs";

/// Content of an exception that is longer is left out: the whole report must stay below the server's limit.
const LONGEST_CONTENT: usize = 64 << 10;

/// How much of a message is told.
const LONGEST_MESSAGE: usize = 4 << 10;

/// A result of more bytes than this is not sent.
const LONGEST_OUTPUT: usize = 800 << 10;

/// What the server is told.
pub(crate) fn of(delivery: &Delivery, ended: &DeliveryEnding, places: &Places) -> Ending {
    match ended {
        DeliveryEnding::Ended(Ended::Completed { result, .. }) => completed(delivery, result, places),
        DeliveryEnding::Ended(Ended::Failed { failure, .. }) => failed(failure),
        DeliveryEnding::Ended(Ended::Cancelled) => retry("the prompt was cancelled"),
        DeliveryEnding::Refused(words) => refusal::from_json(words),
        DeliveryEnding::CalledOff { reason, retry: true } => retry(reason),
        DeliveryEnding::CalledOff { reason, retry: false } => {
            exception(REJECTED, reason, json!({ "message": cut(reason) }))
        }
    }
}

fn completed(delivery: &Delivery, result: &TaskResult, places: &Places) -> Ending {
    let prompt_id = delivery.prompt();
    let outputs = match output::outputs(result, places) {
        Ok(outputs) => outputs,
        Err(nothing) => {
            let content = json!({ "prompt_id": prompt_id, "node_errors": result.node_errors });
            return exception(NO_OUTPUTS, &nothing.to_string(), content);
        }
    };
    let json = output::json(prompt_id, &outputs);
    if json.len() > LONGEST_OUTPUT {
        return too_large(outputs.len(), json.len());
    }
    Ending::Success(Value::JsonObj(json))
}

/// The result is there and cannot be sent.
pub(crate) fn too_large(outputs: usize, bytes: usize) -> Ending {
    Ending::BadOutput {
        message: format!(
            "the workflow left {outputs} outputs, whose paths take {bytes} bytes: more than a LittleHorse server takes"
        ),
    }
}

fn failed(failure: &Failure) -> Ending {
    let details = failure.details.as_ref().map(JsonText::read).unwrap_or_default();
    let detail = |name: &str| details.get(name).cloned();
    // What answered in place of ComfyUI, or ComfyUI itself, when it did not take the prompt.
    let status = detail("status").and_then(|status| status.as_u64());
    match failure.class {
        FailureClass::Execution if status.is_some_and(|status| status >= 500) => retry(&failure.message),
        FailureClass::Connection if status.is_some_and(is_refusal) => {
            exception(REJECTED, &failure.message, json!({ "status": status }))
        }
        FailureClass::Validation => {
            let content = json!({
                "node_id": failure.node_id,
                "error": detail("error"),
                "node_errors": detail("node_errors"),
                "problems": detail("problems"),
            });
            exception(REJECTED, &failure.message, content)
        }
        FailureClass::Harmful => exception(REJECTED, &failure.message, json!({})),
        FailureClass::Execution => {
            let content = json!({
                "node_id": failure.node_id,
                "node_type": detail("node_type"),
                "exception_type": detail("exception_type"),
                "exception_message": detail("exception_message"),
            });
            exception(FAILED, &failure.message, content)
        }
        // Another try, here or elsewhere, may go well.
        FailureClass::OutOfMemory
        | FailureClass::Crash
        | FailureClass::Connection
        | FailureClass::Lost
        | FailureClass::Timeout
        | FailureClass::Delivery
        | FailureClass::Cancelled => retry(&failure.message),
    }
}

/// Whether the same request would be refused again: 4xx, except those that ask for patience.
fn is_refusal(status: u64) -> bool {
    (400..500).contains(&status) && ![408, 425, 429].contains(&status)
}

fn retry(message: &str) -> Ending {
    Ending::Failed { message: cut(message) }
}

/// The name is what workflows handle it by: it stays as it is. What is null in the content is left out of it.
fn exception(name: &str, message: &str, mut content: serde_json::Value) -> Ending {
    if let serde_json::Value::Object(fields) = &mut content {
        fields.retain(|_, value| !value.is_null());
    }
    let mut text = content.to_string();
    if text.len() > LONGEST_CONTENT {
        let node_id = content.get("node_id");
        text = json!({ "node_id": node_id, "left_out_bytes": text.len() }).to_string();
    }
    Ending::Exception { name: name.to_owned(), message: cut(message), content: Value::JsonObj(text) }
}

fn cut(message: &str) -> String {
    match message.char_indices().find(|(at, _)| *at >= LONGEST_MESSAGE) {
        None => message.to_owned(),
        Some((at, _)) => format!("{} …", &message[..at]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;
    use uuid::Uuid;

    use super::*;

    fn delivery() -> Delivery {
        Delivery {
            key: "run/0-1".into(),
            attempt: 0,
            prompt_id: Uuid::from_u128(1),
            second_prompt_id: Uuid::from_u128(2),
            workflow: RawValue::from_string("{}".into()).unwrap(),
            again: false,
            timeout_s: None,
            files: Vec::new(),
            folder: None,
            cookie: json!(null),
            sent_as: None,
            refused: None,
            earlier: Vec::new(),
        }
    }

    fn told(ended: DeliveryEnding) -> Ending {
        of(&delivery(), &ended, &Places::Folder("/out".into()))
    }

    fn failure(class: FailureClass) -> Ending {
        let failure = Failure::new(class, "it did not go well");
        told(DeliveryEnding::Ended(Ended::Failed { failure, partial: None }))
    }

    #[test]
    fn every_class_of_failure_is_tried_again_or_not() {
        for class in FailureClass::ALL {
            use FailureClass as Class;
            let again = !matches!(class, Class::Validation | Class::Execution | Class::Harmful);
            match failure(class) {
                Ending::Failed { message } => assert!(again && message == "it did not go well", "{class}"),
                Ending::Exception { .. } => assert!(!again, "{class}"),
                other => panic!("{class}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_status_decides_whether_it_is_tried_again() {
        for (class, status, again) in [
            (FailureClass::Execution, 500, true),
            (FailureClass::Execution, 507, true),
            (FailureClass::Connection, 401, false),
            (FailureClass::Connection, 403, false),
            (FailureClass::Connection, 404, false),
            (FailureClass::Connection, 429, true),
            (FailureClass::Connection, 503, true),
        ] {
            let failure = Failure {
                details: Some(json!({"status": status}).into()),
                ..Failure::new(class, "it was not taken")
            };
            match told(DeliveryEnding::Ended(Ended::Failed { failure, partial: None })) {
                Ending::Failed { .. } => assert!(again, "{status}"),
                Ending::Exception { name, .. } => assert!(!again && name == REJECTED, "{status}"),
                other => panic!("{status}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_refusal_has_the_node_errors_as_content() {
        let failure = Failure {
            class: FailureClass::Validation,
            message: "ComfyUI refused the workflow".into(),
            node_id: Some("4".into()),
            details: Some(json!({"error": {"type": "x"}, "node_errors": {"4": {"errors": []}}}).into()),
        };
        let ended = told(DeliveryEnding::Ended(Ended::Failed { failure, partial: None }));
        let Ending::Exception { name, content: Value::JsonObj(content), .. } = ended else { panic!() };
        assert_eq!(name, "comfyui-prompt-rejected");
        let content: serde_json::Value = serde_json::from_str(&content).unwrap();
        assert_eq!(
            content,
            json!({"node_id": "4", "error": {"type": "x"}, "node_errors": {"4": {"errors": []}}})
        );
    }

    #[test]
    fn an_exception_of_a_node_is_told_without_its_traceback() {
        let failure = Failure {
            class: FailureClass::Execution,
            message: "node 3 raised".into(),
            node_id: Some("3".into()),
            details: Some(
                json!({"node_type": "KSampler", "exception_type": "ValueError", "exception_message": "no",
                                 "traceback": ["a", "b"]})
                .into(),
            ),
        };
        let ended = told(DeliveryEnding::Ended(Ended::Failed { failure, partial: None }));
        let Ending::Exception { name, content: Value::JsonObj(content), .. } = ended else { panic!() };
        assert_eq!(name, "comfyui-execution-failed");
        let content: serde_json::Value = serde_json::from_str(&content).unwrap();
        assert_eq!(
            content,
            json!({"node_id": "3", "node_type": "KSampler", "exception_type": "ValueError", "exception_message": "no"})
        );
    }

    #[test]
    fn a_result_names_the_id_that_comfyui_has() {
        let result =
            TaskResult { outputs: json!({"5": {"text": ["hello"]}}).into(), ..TaskResult::default() };
        let ended = DeliveryEnding::Ended(Ended::Completed { result, gpu_ms: None });
        let delivery = Delivery { sent_as: Some(Uuid::from_u128(2)), ..delivery() };
        let Ending::Success(Value::JsonObj(json)) = of(&delivery, &ended, &Places::Folder("/out".into()))
        else {
            panic!()
        };
        assert_eq!(json, format!(r#"{{"prompt_id":"{}","outputs":[]}}"#, Uuid::from_u128(2)));
    }

    #[test]
    fn nothing_is_an_exception() {
        let ended = DeliveryEnding::Ended(Ended::Completed { result: TaskResult::default(), gpu_ms: None });
        let Ending::Exception { name, message, .. } = told(ended) else { panic!() };
        assert_eq!(name, "comfyui-no-outputs");
        assert!(message.contains("no outputs"), "{message}");
    }

    #[test]
    fn everything_stays_small() {
        let failure = Failure {
            class: FailureClass::Validation,
            message: "ä".repeat(100_000),
            node_id: Some("4".into()),
            details: Some(json!({"node_errors": "x".repeat(100_000)}).into()),
        };
        let ended = told(DeliveryEnding::Ended(Ended::Failed { failure, partial: None }));
        let Ending::Exception { message, content: Value::JsonObj(content), .. } = ended else { panic!() };
        assert!(message.len() < 5_000 && content.len() < 200, "{} {}", message.len(), content.len());
        assert!(content.contains("left_out_bytes"), "{content}");
        let files = (0..20_000).map(|n| remuda_core::OutputFile {
            n,
            key: String::new(),
            filename: format!("{n}-{}.png", "x".repeat(50)),
            subfolder: String::new(),
            node_id: "9".into(),
            output: "images".into(),
            file_type: "output".into(),
            mime: "image/png".into(),
            size: 0,
            sha256: remuda_core::Sha256([0; 32]),
        });
        let result = TaskResult { files: files.collect(), ..TaskResult::default() };
        let Ending::BadOutput { message } =
            told(DeliveryEnding::Ended(Ended::Completed { result, gpu_ms: None }))
        else {
            panic!()
        };
        assert!(message.contains("20000 outputs"), "{message}");
    }

    #[test]
    fn what_was_called_off_may_be_tried_again_unless_it_was_not_possible() {
        let off = |retry| told(DeliveryEnding::CalledOff { reason: "the worker is stopping".into(), retry });
        assert_eq!(off(true), Ending::Failed { message: "the worker is stopping".into() });
        assert!(matches!(off(false), Ending::Exception { name, .. } if name == REJECTED));
    }
}
