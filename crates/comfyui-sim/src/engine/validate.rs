//! What POST /prompt refuses, what it wrongly accepts, and the conversions it makes on the way.
//!
//! A node is checked after everything it is linked to. That order, the place at which an error is
//! reported and the texts are ComfyUI's; an error of a linked node is not repeated at the node below it.

mod check;
mod complaint;

use crate::config::Profile;
use crate::engine::Dirs;
use crate::json::{Dict, Json, dict};
use crate::nodes::Registry;
use check::Check;

/// The handler raised: 500.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trouble;

/// What became of a prompt.
#[derive(Debug)]
pub(super) struct Verdict {
    /// Why nothing of it can run.
    pub(super) refusal: Option<Json>,
    /// The outputs that can run.
    pub(super) outputs: Vec<String>,
    /// Errors by node; there may be some although other outputs can run.
    pub(super) node_errors: Dict,
}

impl Verdict {
    fn refused(kind: &str, message: String, details: String, node_errors: Dict) -> Verdict {
        let error = dict([
            ("type", kind.into()),
            ("message", message.into()),
            ("details", details.into()),
            ("extra_info", Json::empty_dict()),
        ]);
        Verdict { refusal: Some(error), outputs: Vec::new(), node_errors }
    }
}

/// Checks a prompt and converts its values in place.
pub(super) fn validate(
    registry: &Registry,
    dirs: &Dirs,
    profile: Profile,
    prompt: &mut Json,
    targets: Option<&Json>,
) -> Result<Verdict, Trouble> {
    let outputs = match output_nodes(registry, prompt, targets)? {
        Ok(outputs) => outputs,
        Err(verdict) => return Ok(verdict),
    };
    let Json::Dict(nodes) = prompt else {
        return Err(Trouble);
    };
    let mut check = Check::new(registry, dirs, profile, nodes);
    let mut good = Vec::new();
    let mut node_errors = Dict::new();
    let mut complaints = Vec::new();
    for output in outputs {
        let errors = check.output(&output);
        match errors {
            None => good.push(output),
            Some(errors) => {
                complaints.extend(errors);
                check.report(&output, &mut node_errors);
            }
        }
    }
    if good.is_empty() {
        let details: Vec<String> = complaints
            .iter()
            .map(|error| format!("{}: {}", text_of(error, "message"), text_of(error, "details")))
            .collect();
        let message = "Prompt outputs failed validation".to_owned();
        return Ok(Verdict::refused(
            "prompt_outputs_failed_validation",
            message,
            details.join("\n"),
            node_errors,
        ));
    }
    Ok(Verdict { refusal: None, outputs: good, node_errors })
}

fn text_of(error: &Json, key: &str) -> String {
    error.get(key).map(Json::str).unwrap_or_default()
}

/// The output nodes to check, in the order of the prompt; the inner error is an answer, the outer one a 500.
fn output_nodes(
    registry: &Registry,
    prompt: &Json,
    targets: Option<&Json>,
) -> Result<Result<Vec<String>, Verdict>, Trouble> {
    let empty = Dict::new();
    let nodes = match prompt {
        Json::Dict(nodes) => nodes,
        // Python walks over these as well, and finds nothing to trip over only when they are empty.
        Json::List(values) if values.is_empty() => &empty,
        Json::Str(text) if text.is_empty() => &empty,
        _ => return Err(Trouble),
    };
    let refused = |message: String, id: &str| {
        Ok(Err(Verdict::refused("invalid_prompt", message, format!("Node ID '#{id}'"), Dict::new())))
    };
    let mut outputs = Vec::new();
    for (id, node) in nodes {
        if !contains(node, "class_type")? {
            let message = "Cannot execute because a node is missing the class_type property.";
            return refused(message.to_owned(), id);
        }
        let class_type = node.get("class_type").ok_or(Trouble)?;
        if matches!(class_type, Json::List(_) | Json::Dict(_)) {
            return Err(Trouble);
        }
        let Some(class) = class_type.as_str().and_then(|name| registry.get(name)) else {
            return refused(format!("Cannot execute because node {} does not exist.", class_type.str()), id);
        };
        if class.output_node
            && match targets {
                None | Some(Json::Null) => true,
                Some(targets) => contains(targets, id)?,
            }
        {
            outputs.push(id.clone());
        }
    }
    if outputs.is_empty() {
        return Ok(Err(Verdict::refused(
            "prompt_no_outputs",
            "Prompt has no outputs".to_owned(),
            String::new(),
            Dict::new(),
        )));
    }
    Ok(Ok(outputs))
}

/// Python's `key in value`.
pub(super) fn contains(value: &Json, key: &str) -> Result<bool, Trouble> {
    match value {
        Json::Dict(members) => Ok(members.contains_key(key)),
        Json::List(values) => Ok(values.iter().any(|value| value.as_str() == Some(key))),
        Json::Str(text) => Ok(text.contains(key)),
        _ => Err(Trouble),
    }
}
