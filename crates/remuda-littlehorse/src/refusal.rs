//! What is said of a task that cannot be begun, as the journal keeps it.

use littlehorse::{Ending, Value};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Refusal {
    BadInput { message: String },
    Exception { name: String, message: String, content: String },
    Failed { message: String },
}

/// For the journal; none of an ending that is no refusal.
pub(crate) fn to_json(ending: &Ending) -> Option<serde_json::Value> {
    let refusal = match ending.clone() {
        Ending::BadInput { message } => Refusal::BadInput { message },
        Ending::Exception { name, message, content: Value::JsonObj(content) } => {
            Refusal::Exception { name, message, content }
        }
        Ending::Failed { message } => Refusal::Failed { message },
        Ending::Success(_) | Ending::BadOutput { .. } | Ending::Exception { .. } => return None,
    };
    serde_json::to_value(refusal).ok()
}

/// From the journal.
pub(crate) fn from_json(words: &serde_json::Value) -> Ending {
    match Refusal::deserialize(words) {
        Ok(Refusal::BadInput { message }) => Ending::BadInput { message },
        Ok(Refusal::Exception { name, message, content }) => {
            Ending::Exception { name, message, content: Value::JsonObj(content) }
        }
        Ok(Refusal::Failed { message }) => Ending::Failed { message },
        // Written by another version.
        Err(_) => Ending::BadInput { message: format!("the task could not be begun: {words}") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_comes_back_from_the_journal_as_it_was() {
        let content = Value::JsonObj("{\"node_id\":\"3\"}".into());
        for ending in [
            Ending::BadInput { message: "input `workflow`: it is null".into() },
            Ending::Exception { name: "comfyui-damaged-number".into(), message: "seed".into(), content },
            Ending::Failed { message: "later".into() },
        ] {
            assert_eq!(from_json(&to_json(&ending).unwrap()), ending);
        }
        assert!(to_json(&Ending::Success(Value::Null)).is_none());
        assert!(matches!(from_json(&serde_json::json!({"kind": "new"})), Ending::BadInput { .. }));
    }
}
