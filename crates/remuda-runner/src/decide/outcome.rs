//! From the end of a prompt at ComfyUI to the end of an attempt.

use comfyui::outputs;
use comfyui::{ExecutionFailure, GaveUp, Lost, Outcome, Success};
use remuda_core::{Failure, FailureClass};
use serde_json::json;

/// What follows from the end of a prompt.
#[derive(Debug)]
pub(crate) enum Judged {
    /// Its files are to be collected.
    Good(Box<Success>),
    /// The attempt failed.
    Bad(Bad),
    /// Only the watching ended; nothing is known of the prompt.
    Unwatched,
}

/// Inputs of a node that raised, as ComfyUI prints them, are kept up to this length.
const LONGEST_INPUTS: usize = 16 << 10;

/// The longest text of an exception; some print whole tensors.
const LONGEST_MESSAGE: usize = 16 << 10;

/// How many lines of a traceback are kept, the last ones, and how long each may be.
const TRACEBACK: (usize, usize) = (100, 4 << 10);

/// How many nodes that ran before are named.
const MOST_EXECUTED: usize = 1_000;

/// How many files a message names.
const MOST_NAMES: usize = 10;

/// A bad end.
#[derive(Debug)]
pub(crate) struct Bad {
    pub(crate) failure: Failure,
    /// The end as ComfyUI told it, when branches that ended before have left something.
    pub(crate) left: Option<Box<ExecutionFailure>>,
    /// The worker must free memory, or forget cached results, before it takes another prompt.
    pub(crate) free: bool,
    /// The worker takes prompts and runs none.
    pub(crate) dead: bool,
}

impl Bad {
    fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self { failure: Failure::new(class, message), left: None, free: false, dead: false }
    }
}

/// Judges how a prompt ended that nobody of us asked to stop.
pub(crate) fn judge(outcome: Outcome) -> Judged {
    Judged::Bad(match outcome {
        Outcome::Succeeded(success) if success.missing_files.is_empty() => {
            return Judged::Good(Box::new(success));
        }
        Outcome::Succeeded(success) => {
            let files = &success.missing_files;
            let names: Vec<_> = files.iter().take(MOST_NAMES).map(|file| file.filename.as_str()).collect();
            let more = match files.len().saturating_sub(MOST_NAMES) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let message = format!(
                "ComfyUI answered from its cache with files that are gone: {}{more}; its cache was emptied",
                names.join(", ")
            );
            Bad { free: true, ..Bad::new(FailureClass::Execution, message) }
        }
        // Rendering it again would leave as much again.
        Outcome::TooMany(error) => {
            let limit = match error.limit {
                outputs::Limit::Files => "graph.output_files",
                outputs::Limit::Outputs => "graph.outputs",
                _ => "graph.name_length",
            };
            let message = format!("its result was not taken: {error} (the limit is {limit})");
            let details = Some(json!({ "limit": limit, "most": error.most }).into());
            let failure = Failure { details, ..Failure::new(FailureClass::Delivery, message) };
            Bad { failure, left: None, free: false, dead: false }
        }
        // The entry repeats what was sent: every worker would answer the same.
        Outcome::TooLarge { what, limit, unit } => {
            let setting = if unit == "bytes" { " (the limit is workers.max_history)" } else { "" };
            let message = format!(
                "its result was not taken: the answer to {what} is larger than {limit} {unit}{setting}"
            );
            let details =
                (unit == "bytes").then(|| json!({ "limit": "workers.max_history", "most": limit }).into());
            let failure = Failure { details, ..Failure::new(FailureClass::Delivery, message) };
            Bad { failure, left: None, free: false, dead: false }
        }
        Outcome::Failed(failure) => raised(failure),
        Outcome::Interrupted(at) => {
            Bad::new(FailureClass::Execution, format!("{at}, by somebody else than Remuda"))
        }
        Outcome::Deleted => {
            Bad::new(FailureClass::Lost, "somebody else than Remuda took it out of ComfyUI's queue")
        }
        Outcome::Lost(lost) => gone(lost),
        Outcome::GaveUp(GaveUp::Unreachable { for_ }) => Bad::new(
            FailureClass::Connection,
            format!("ComfyUI could not be reached for {} s", for_.as_secs()),
        ),
        Outcome::GaveUp(GaveUp::TimedOut { .. } | GaveUp::SessionClosed) => return Judged::Unwatched,
    })
}

fn raised(failure: Box<ExecutionFailure>) -> Bad {
    let class = if failure.out_of_memory { FailureClass::OutOfMemory } else { FailureClass::Execution };
    // Whole tensors are printed there.
    let current_inputs =
        Some(&failure.current_inputs).filter(|inputs| inputs.to_string().len() <= LONGEST_INPUTS);
    let (lines, length) = TRACEBACK;
    let begin = failure.traceback.len().saturating_sub(lines);
    let traceback: Vec<&str> = failure.traceback[begin..].iter().map(|line| cut(line, length)).collect();
    let executed = &failure.executed[..failure.executed.len().min(MOST_EXECUTED)];
    let details = json!({
        "node_type": cut(&failure.node_type, LONGEST_MESSAGE),
        "exception_type": cut(&failure.exception_type, LONGEST_MESSAGE),
        "exception_message": cut(&failure.message, LONGEST_MESSAGE),
        "traceback": traceback,
        "executed": executed,
        "current_inputs": current_inputs,
    });
    let node_id = Some(failure.node_id.clone()).filter(|id| !id.is_empty());
    let message = cut(failure.to_string().trim_end(), LONGEST_MESSAGE).to_owned();
    let left = Some(failure).filter(|failure| !failure.outputs.is_empty());
    let failure = Failure { class, message, node_id, details: Some(details.into()) };
    Bad { failure, left, free: class == FailureClass::OutOfMemory, dead: false }
}

/// The beginning of a text that may be of any length.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

fn gone(lost: Lost) -> Bad {
    let class = match lost {
        Lost::Restarted | Lost::NeverSeen | Lost::WorkerDead | Lost::Stalled => FailureClass::Crash,
        Lost::HistoryGone => FailureClass::Lost,
    };
    let dead = matches!(lost, Lost::WorkerDead | Lost::Stalled);
    Bad { dead, ..Bad::new(class, lost.to_string()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use comfyui::outputs::Outputs;

    use super::*;

    fn failed(out_of_memory: bool) -> Outcome {
        Outcome::Failed(Box::new(ExecutionFailure {
            node_id: "7".into(),
            node_type: "KSampler".into(),
            exception_type: "torch.OutOfMemoryError".into(),
            message: "no memory\n".into(),
            traceback: vec!["line".into()],
            out_of_memory,
            executed: vec!["3".into()],
            current_inputs: json!({"seed": [5]}),
            outputs: Outputs::default(),
            raw_outputs: serde_json::value::RawValue::from_string("{}".into()).unwrap(),
            duration_ms: None,
        }))
    }

    #[test]
    fn every_bad_end_has_its_class() {
        let check = |outcome, class, free, dead| match judge(outcome) {
            Judged::Bad(bad) => assert_eq!((bad.failure.class, bad.free, bad.dead), (class, free, dead)),
            other => panic!("{other:?}"),
        };
        check(failed(false), FailureClass::Execution, false, false);
        check(failed(true), FailureClass::OutOfMemory, true, false);
        check(Outcome::Deleted, FailureClass::Lost, false, false);
        let many = outputs::Outputs::from_history_within(
            &serde_json::value::RawValue::from_string(r#"{"1": {"images": [{"filename": "a"}]}}"#.into())
                .unwrap(),
            &outputs::Limits { files: 0, ..outputs::Limits::default() },
        );
        check(Outcome::TooMany(many.unwrap_err()), FailureClass::Delivery, false, false);
        check(Outcome::Lost(Lost::Restarted), FailureClass::Crash, false, false);
        check(Outcome::Lost(Lost::HistoryGone), FailureClass::Lost, false, false);
        check(Outcome::Lost(Lost::WorkerDead), FailureClass::Crash, false, true);
        check(Outcome::Lost(Lost::Stalled), FailureClass::Crash, false, true);
        let away = GaveUp::Unreachable { for_: Duration::from_secs(60) };
        check(Outcome::GaveUp(away), FailureClass::Connection, false, false);
        assert!(matches!(judge(Outcome::GaveUp(GaveUp::SessionClosed)), Judged::Unwatched));
    }

    #[test]
    fn an_exception_is_told_whole() {
        let Judged::Bad(bad) = judge(failed(false)) else { panic!() };
        assert_eq!(bad.failure.message, "node 7 (KSampler) raised torch.OutOfMemoryError: no memory");
        assert_eq!(bad.failure.node_id.as_deref(), Some("7"));
        let details = bad.failure.details.unwrap().read();
        assert_eq!((&details["traceback"][0], &details["executed"][0]), (&json!("line"), &json!("3")));
        assert_eq!(details["current_inputs"]["seed"][0], 5);
        assert!(bad.left.is_none(), "nothing was left");
    }
}
