//! Checks of what goes around the graph in `POST /prompt`, and of texts that may not be a graph at all.

use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::lenient;
use crate::object_info::ObjectInfo;
use crate::workflow::{Workflow, WorkflowError};

use super::inputs::{NON_FINITE_HARM, shown};
use super::report::{Kind, Noticed, Problem, Report, Severity};
use super::values::Number;
use super::{Options, structure};

/// How many bare words are reported one by one.
const MAX_WORDS: usize = 20;

/// Checks a text that should be a workflow. What is wrong with the text becomes a finding, and a graph with bare
/// `NaN` in it is checked to the end.
///
/// ```
/// use comfyui::guard::{Options, check_text};
///
/// let report = check_text(r#"{"1": {"class_type": "KSampler", "inputs": {"cfg": NaN}}}"#, None, &Options::default());
/// assert!(report.kills());
/// assert!(report.to_string().starts_with("node 1 (KSampler) input cfg: is the bare word NaN"));
/// ```
pub fn check_text(json: impl AsRef<[u8]>, info: Option<&ObjectInfo>, options: &Options) -> Report {
    let json = json.as_ref();
    let repaired = lenient::replace_non_finite(json);
    let mut report = match Workflow::parse(&repaired) {
        Ok(workflow) => {
            let mut report = structure::check(&workflow, info, options);
            let offset = workflow_offset(&repaired);
            for problem in bare_words(json, offset, &workflow) {
                report.add(problem);
            }
            report
        }
        Err(error) => not_a_workflow(&error),
    };
    report.problems.sort_by_key(|problem| std::cmp::Reverse(problem.severity));
    report
}

/// Checks a whole body of `POST /prompt`: the graph and everything around it.
///
/// The targets of the request count, not those of the options.
///
/// ```
/// use comfyui::guard::{Options, check_request};
///
/// let body = r#"{"prompt": {"1": {"class_type": "SaveImage", "inputs": {}}}, "client_id": {"not": "a text"}}"#;
/// let report = check_request(body, None, &Options::default());
/// assert_eq!(report.to_string(), "client_id is an object, and the server would end; send a text");
/// ```
pub fn check_request(body: impl AsRef<[u8]>, info: Option<&ObjectInfo>, options: &Options) -> Report {
    let body = body.as_ref();
    let repaired = lenient::replace_non_finite(body);
    let fields = match fields(&repaired) {
        Ok(fields) => fields,
        Err(message) => return refusal(Kind::NotAWorkflow, message),
    };
    let field = |name: &str| fields.iter().rfind(|(key, _)| key == name).map(|(_, raw)| *raw);
    let value = |name: &str| field(name).and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());

    let mut report = match field("prompt") {
        None => refusal(Kind::NotAWorkflow, "the request has no prompt".to_owned()),
        Some(prompt) => {
            let targets = value("partial_execution_targets").as_ref().and_then(targets_of);
            let options = Options { targets, ..options.clone() };
            match Workflow::from_raw(prompt.to_owned()) {
                Ok(workflow) => {
                    let offset = prompt.get().as_ptr() as usize - repaired.as_ptr() as usize;
                    let mut report = structure::check(&workflow, info, &options);
                    for problem in bare_words(body, offset, &workflow) {
                        report.add(problem);
                    }
                    report
                }
                Err(error) => not_a_workflow(&error),
            }
        }
    };
    let extra_data = value("extra_data");
    let hidden_id = extra_data.as_ref().and_then(|extra| extra.get("client_id")).cloned();
    let client_id = value("client_id").or(hidden_id).unwrap_or_default();
    let around = [
        check_client_id(&client_id),
        value("prompt_id").as_ref().and_then(check_prompt_id),
        value("number").as_ref().and_then(check_number),
        extra_data.as_ref().and_then(check_extra_data),
        value("partial_execution_targets").as_ref().and_then(check_targets),
    ];
    for problem in around.into_iter().flatten() {
        report.add(problem);
    }
    report.sorted()
}

/// Checks a `client_id`. Null stands for one that is not sent.
///
/// ```
/// use comfyui::guard::{Severity, check_client_id};
/// use serde_json::json;
///
/// assert!(check_client_id(&json!("my-client")).is_none());
/// assert_eq!(check_client_id(&json!([1])).unwrap().severity, Severity::Kills);
/// ```
pub fn check_client_id(client_id: &Value) -> Option<Problem> {
    let kind = Kind::ClientId;
    match client_id {
        Value::String(text) if !text.is_empty() => None,
        Value::Object(_) => {
            Some(kills(kind, "client_id is an object, and the server would end; send a text".to_owned()))
        }
        Value::Array(_) => Some(kills(kind, "client_id is a list, and the server would end; send a text".to_owned())),
        Value::Null | Value::String(_) => Some(suspicious(
            kind,
            "without a client_id, cached results come back without their outputs and messages go to everybody; \
             send any text"
                .to_owned(),
        )),
        Value::Bool(_) | Value::Number(_) => {
            Some(suspicious(kind, "client_id is not a text, so no websocket receives its messages".to_owned()))
        }
    }
}

/// Checks a `prompt_id`: a UUID in lower case with hyphens is what all versions take.
///
/// ```
/// use comfyui::guard::check_prompt_id;
/// use serde_json::json;
///
/// assert!(check_prompt_id(&json!("0f3c0d5e-7c39-4f7e-9a53-3f6c8f6f3a10")).is_none());
/// assert!(check_prompt_id(&json!("0F3C0D5E-7C39-4F7E-9A53-3F6C8F6F3A10")).is_some());
/// ```
pub fn check_prompt_id(prompt_id: &Value) -> Option<Problem> {
    let canonical = |text: &str| {
        uuid::Uuid::parse_str(text)
            .is_ok_and(|uuid| uuid.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()) == text)
    };
    match prompt_id {
        Value::String(text) if canonical(text) => None,
        Value::Null => {
            let message = "prompt_id is null, which some versions take for the text None; leave it out";
            Some(suspicious(Kind::PromptId, message.to_owned()))
        }
        other => {
            let message = format!(
                "prompt_id {} is not a UUID in lower case with hyphens, and newer versions refuse it",
                shown(&other.to_string())
            );
            Some(refused(Kind::PromptId, message))
        }
    }
}

/// Checks a `number`, the priority of a prompt.
///
/// ```
/// use comfyui::guard::{Severity, check_number};
/// use serde_json::json;
///
/// assert!(check_number(&json!(-1.5)).is_none());
/// assert_eq!(check_number(&json!("nan")).unwrap().severity, Severity::Kills);
/// ```
pub fn check_number(number: &Value) -> Option<Problem> {
    let text = match number {
        Value::Number(_) => return None,
        Value::Bool(_) => {
            return Some(suspicious(Kind::Number, "number is a truth value, taken as 0 or 1".to_owned()));
        }
        Value::String(text) => text,
        other => {
            return Some(refused(
                Kind::Number,
                format!("number {} is not a number", shown(&other.to_string())),
            ));
        }
    };
    let told = shown(text);
    match text.trim().replace('_', "").parse().map(Number::Float) {
        Err(_) => Some(refused(Kind::Number, format!("number {told:?} is not a number"))),
        Ok(read) if !read.is_finite() => {
            Some(kills(Kind::Number, format!("number {told:?} is not finite; {NON_FINITE_HARM}")))
        }
        Ok(_) => Some(suspicious(Kind::Number, format!("number {told:?} is a text, taken as a number"))),
    }
}

/// Checks `extra_data`. Its `client_id` is the business of [`check_client_id`].
///
/// ```
/// use comfyui::guard::{Severity, check_extra_data};
/// use serde_json::json;
///
/// assert!(check_extra_data(&json!({"extra_pnginfo": {"workflow": {"id": "x"}}})).is_none());
/// let problem = check_extra_data(&json!({"extra_pnginfo": "a text"})).unwrap();
/// assert_eq!(problem.severity, Severity::Kills);
/// ```
pub fn check_extra_data(extra_data: &Value) -> Option<Problem> {
    let Value::Object(fields) = extra_data else {
        return Some(refused(Kind::ExtraData, "extra_data is not an object".to_owned()));
    };
    let harm = "as long as the prompt is known, the list of jobs fails for everybody";
    let pnginfo = match fields.get("extra_pnginfo") {
        None => None,
        Some(Value::Object(pnginfo)) => Some(pnginfo),
        Some(_) => {
            return Some(kills(
                Kind::ExtraData,
                format!("extra_data.extra_pnginfo is not an object: {harm}"),
            ));
        }
    };
    if pnginfo.and_then(|pnginfo| pnginfo.get("workflow")).is_some_and(|workflow| !workflow.is_object()) {
        let message = format!("extra_data.extra_pnginfo.workflow is not an object: {harm}; leave it out");
        return Some(kills(Kind::ExtraData, message));
    }
    let known = ["default", "none", "auto", "latent2rgb", "taesd"];
    let preview = fields.get("preview_method").filter(|method| !known.iter().any(|known| *method == known));
    preview.filter(|method| !method.is_null()).map(|method| {
        suspicious(
            Kind::ExtraData,
            format!(
                "extra_data.preview_method {} is not known and has no effect",
                shown(&method.to_string())
            ),
        )
    })
}

/// Checks the shape of `partial_execution_targets`; whether they name output nodes is found by [`check`](super::check()).
///
/// ```
/// use comfyui::guard::check_targets;
/// use serde_json::json;
///
/// assert!(check_targets(&json!(["9", "12"])).is_none());
/// assert!(check_targets(&json!(9)).is_some());
/// ```
pub fn check_targets(targets: &Value) -> Option<Problem> {
    let message = "partial_execution_targets is not a list of node ids".to_owned();
    match targets {
        Value::Null => None,
        Value::Array(list) if list.iter().all(Value::is_string) => None,
        Value::Array(_) | Value::Object(_) | Value::String(_) => Some(suspicious(Kind::Targets, message)),
        Value::Bool(_) | Value::Number(_) => Some(refused(Kind::Targets, message)),
    }
}

/// The targets that a request names; None for all output nodes.
fn targets_of(targets: &Value) -> Option<Vec<String>> {
    match targets {
        Value::Null => None,
        Value::Array(list) => Some(list.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
        Value::Object(fields) => Some(fields.keys().cloned().collect()),
        Value::String(text) => Some(vec![text.clone()]),
        Value::Bool(_) | Value::Number(_) => Some(Vec::new()),
    }
}

type Fields<'a> = Vec<(std::borrow::Cow<'a, str>, &'a RawValue)>;

/// The fields of a request, or what it is instead.
fn fields(body: &[u8]) -> Result<Fields<'_>, String> {
    let not_json = |error: &dyn std::fmt::Display| format!("the request is not JSON: {error}");
    let text = std::str::from_utf8(body).map_err(|error| not_json(&error))?;
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| not_json(&error))?;
    let fields = crate::workflow::entries(text).map_err(|error| not_json(&error))?;
    fields.ok_or_else(|| "the request is not an object".to_owned())
}

/// Where the workflow begins in a text that [`Workflow::parse`] took.
fn workflow_offset(json: &[u8]) -> usize {
    json.iter().position(|&byte| byte == b'{').unwrap_or_default()
}

/// A finding for every bare `NaN` or `Infinity` of the text, with its node and input where it stands in one.
///
/// The workflow was read from the text with `null` in place of the words, and begins there at `offset`.
fn bare_words(json: &[u8], offset: usize, workflow: &Workflow) -> Vec<Problem> {
    let mut words = lenient::non_finite_words(json).peekable();
    if words.peek().is_none() {
        return Vec::new();
    }
    let text = workflow.as_str();
    let span = |raw: &RawValue| {
        let start = raw.get().as_ptr() as usize - text.as_ptr() as usize;
        start..start + raw.get().len()
    };
    let nodes = workflow.nodes();
    let mut places = Vec::new();
    for node in &nodes {
        for input in node.inputs().unwrap_or_default() {
            places.push((span(input.raw), node, Some(input)));
        }
        places.push((span(node.raw()), node, None));
    }
    // Every word before this one was replaced by four letters.
    let mut shift = 0_isize;
    let mut found = Vec::new();
    for (at, word) in words.take(MAX_WORDS) {
        let here = at.checked_add_signed(shift).and_then(|at| at.checked_sub(offset));
        shift += 4 - word.len() as isize;
        let place = here.and_then(|here| places.iter().find(|(span, _, _)| span.contains(&here)));
        let mut problem =
            kills(Kind::NonFinite, format!("is the bare word {word}, which is not JSON; {NON_FINITE_HARM}"));
        match place {
            Some((_, node, input)) => {
                problem.node_id = Some(node.id().to_owned());
                problem.class_type = node.class_type().map(|class| class.into_owned());
                problem.input = input.as_ref().map(|input| input.name.clone().into_owned());
            }
            None => problem.message = format!("the request holds the bare word {word}; {NON_FINITE_HARM}"),
        }
        found.push(problem);
    }
    found
}

fn not_a_workflow(error: &WorkflowError) -> Report {
    refusal(Kind::NotAWorkflow, error.to_string())
}

fn refusal(kind: Kind, message: String) -> Report {
    Report { problems: vec![refused(kind, message)], ..Report::default() }
}

fn kills(kind: Kind, message: String) -> Problem {
    problem(kind, Severity::Kills, Noticed::Never, message)
}

fn refused(kind: Kind, message: String) -> Problem {
    problem(kind, Severity::Refused, Noticed::AtSubmission, message)
}

fn suspicious(kind: Kind, message: String) -> Problem {
    problem(kind, Severity::Suspicious, Noticed::Never, message)
}

fn problem(kind: Kind, severity: Severity, noticed: Noticed, message: String) -> Problem {
    Problem { kind, severity, noticed, node_id: None, class_type: None, input: None, message }
}
