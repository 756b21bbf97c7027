//! From an input of a task to the graph that ComfyUI gets, byte for byte.

use comfyui::Workflow;
use comfyui::workflow::{Limits, WorkflowError};
use littlehorse::{Ending, Input, Value};
use remuda_preflight::limit_setting;
use serde_json::json;
use serde_json::value::RawValue;

/// The name of the exception that says which number the server has damaged.
pub(crate) const DAMAGED: &str = "comfyui-damaged-number";

/// From here on an integer does not survive a JSON_OBJ: the server keeps numbers as 64-bit integers with a sign, or else
/// as floats.
const LIMIT: f64 = 9_223_372_036_854_775_808.0;

/// The largest seed there is, as a float.
const LARGEST: f64 = 18_446_744_073_709_551_616.0;

/// The graph; or how the task ends, because there is none.
pub(crate) fn workflow(input: &Input, limits: &Limits) -> Result<Box<RawValue>, Box<Ending>> {
    let bad = |reason: String| {
        // What is masked is not to be seen anywhere, not even a piece of it in an error.
        let reason =
            if input.masked { "it is not a workflow (the value is masked)".to_owned() } else { reason };
        Box::new(Ending::BadInput { message: format!("input `{}`: {reason}", input.name) })
    };
    let (text, rewritten) = match &input.value {
        Value::JsonObj(text) => (text, true),
        Value::Str(text) => (text, false),
        Value::Null => {
            return Err(bad("it is null; a workflow in ComfyUI's API format is wanted".to_owned()));
        }
        _ => return Err(bad("a workflow is a JSON object, or the text of one".to_owned())),
    };
    let workflow = Workflow::parse_within(text, limits).map_err(|error| match error {
        WorkflowError::TooLarge(error) => {
            bad(format!("{error} (the limit is {})", limit_setting(error.limit)))
        }
        error => bad(error.to_string()),
    })?;
    match damaged(&workflow).filter(|_| rewritten) {
        None => Ok(workflow.as_raw().to_owned()),
        Some(damaged) => Err(Box::new(damaged.ending())),
    }
}

/// A number that was an integer before it went through the server.
#[derive(Debug, PartialEq, Eq)]
struct Damaged {
    node: String,
    input: String,
    value: String,
}

impl Damaged {
    fn ending(&self) -> Ending {
        let Self { node, input, value } = self;
        let message = format!(
            "input {input} of node {node} arrived as {value}: integers from 2^63 on do not survive a JSON_OBJ variable. \
             Use a seed below 9223372036854775808, or a TaskDef whose input is a STR with the workflow as JSON text"
        );
        let content = json!({ "node_id": node, "input": input, "value": value });
        Ending::Exception { name: DAMAGED.to_owned(), message, content: Value::JsonObj(content.to_string()) }
    }
}

/// The first literal value that only a damaged integer can be: a float between 2^63 and 2^64, where the seeds are; as a
/// seed any float from 2^63 on.
fn damaged(workflow: &Workflow) -> Option<Damaged> {
    workflow.nodes().iter().find_map(|node| {
        let inputs = node.inputs()?;
        let input = inputs.iter().find(|input| {
            let text = input.raw.get();
            let float = text.contains(['.', 'e', 'E']) && !text.starts_with(['"', '{', '[']);
            let Some(value) = float.then(|| text.parse::<f64>().ok()).flatten() else { return false };
            let seed = matches!(&*input.name, "seed" | "noise_seed");
            value >= LIMIT && (seed || value <= LARGEST)
        })?;
        let value = input.raw.get().chars().take(40).collect();
        Some(Damaged { node: node.id().to_owned(), input: input.name.to_string(), value })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(value: Value) -> Input {
        Input { name: "workflow".to_owned(), value, masked: false }
    }

    fn graph(seed: &str) -> String {
        format!(r#"{{"3": {{"class_type": "KSampler", "inputs": {{"seed": {seed}, "cfg": 8.0}}}}}}"#)
    }

    #[test]
    fn a_graph_comes_through_byte_for_byte() {
        let text = graph("18446744073709551615");
        for value in [Value::Str(text.clone()), Value::JsonObj(graph("5"))] {
            let (Value::Str(expected) | Value::JsonObj(expected)) = value.clone() else { unreachable!() };
            assert_eq!(workflow(&input(value), &Limits::default()).unwrap().get(), expected);
        }
    }

    #[test]
    fn damaged_seeds_are_named() {
        for seed in ["1.8446744073709552E19", "9.223372036854775808e18", "1.2e19"] {
            let ended = *workflow(&input(Value::JsonObj(graph(seed))), &Limits::default()).unwrap_err();
            let Ending::Exception { name, message, content: Value::JsonObj(content) } = ended else {
                panic!()
            };
            assert_eq!(name, DAMAGED);
            assert!(message.contains("input seed of node 3") && message.contains("STR"), "{message}");
            let content: serde_json::Value = serde_json::from_str(&content).unwrap();
            assert_eq!(content, json!({"node_id": "3", "input": "seed", "value": seed}));
        }
    }

    #[test]
    fn other_numbers_are_not_suspected() {
        for seed in
            ["9223372036854775807", "0", "-1", "8.0", "1.0E-5", "1e30", "null", "\"1.8446744073709552E19\""]
        {
            let text = graph("7").replace("8.0", seed);
            assert!(workflow(&input(Value::JsonObj(text)), &Limits::default()).is_ok(), "{seed}");
        }
        // Text is what somebody wrote, and comes as it was written.
        assert!(workflow(&input(Value::Str(graph("1.8446744073709552E19"))), &Limits::default()).is_ok());
    }

    #[test]
    fn what_is_no_graph_is_a_bad_input() {
        for value in [
            Value::Null,
            Value::Int(5),
            Value::JsonArr("[]".into()),
            Value::Str("{\"3\": ".into()),
            Value::Str("[1]".into()),
            Value::JsonObj("{}".into()),
        ] {
            let ended = *workflow(&input(value.clone()), &Limits::default()).unwrap_err();
            assert!(
                matches!(&ended, Ending::BadInput { message } if message.starts_with("input `workflow`: ")),
                "{value:?}: {ended:?}"
            );
        }
    }

    #[test]
    fn a_graph_that_is_too_large_is_told_with_its_limit() {
        let limits = Limits { inputs: 1, ..Limits::default() };
        let Ending::BadInput { message } = *workflow(&input(Value::Str(graph("1"))), &limits).unwrap_err()
        else {
            panic!()
        };
        assert!(message.contains("node 3 has more than 1 input (the limit is graph.inputs)"), "{message}");
    }

    #[test]
    fn a_masked_value_is_not_told() {
        let masked = Input { masked: true, ..input(Value::Str("{\"secret\": hunter2}".into())) };
        let Ending::BadInput { message } = *workflow(&masked, &Limits::default()).unwrap_err() else {
            panic!()
        };
        assert!(!message.contains("hunter2") && message.contains("masked"), "{message}");
    }
}
