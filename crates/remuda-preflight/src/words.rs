//! What a check found, in the words in which ComfyUI itself refuses a prompt.
//!
//! Clients that speak ComfyUI look for these types and fields: its web page marks nodes and inputs by them.

use std::collections::{HashMap, HashSet};

use comfyui::guard::{Kind, Problem};
use comfyui::object_info::{InputKind, InputSpec};
use comfyui::workflow::Index;
use comfyui::{ObjectInfo, Workflow};
use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::refusal::{Place, Refusal, RefusalKind};

/// How many nodes are named.
const MOST_NODES: usize = 200;

/// How many errors are told of each.
const MOST_ERRORS: usize = 100;

/// How many outputs that depend on a node are named.
const MOST_DEPENDENT: usize = 100;

/// How many nodes and links are looked at to find them.
const MOST_STEPS: usize = 200_000;

/// Longer texts and values are cut.
const LONGEST: usize = 4 << 10;

/// Longer lists of choices are not repeated, as in ComfyUI itself.
const MOST_CHOICES: usize = 20;

const FAILED: (&str, &str) = ("prompt_outputs_failed_validation", "Prompt outputs failed validation");
const NO_OUTPUTS: (&str, &str) = ("prompt_no_outputs", "Prompt has no outputs");

/// A refusal as ComfyUI would word it.
#[derive(Debug, Clone, PartialEq)]
pub struct Words {
    /// `error.type`.
    pub kind: &'static str,
    /// `error.message`.
    pub message: String,
    /// `error.details`.
    pub details: String,
    /// `error.extra_info`.
    pub extra_info: Map<String, Value>,
    /// `node_errors`.
    pub node_errors: Map<String, Value>,
}

impl Words {
    fn new((kind, message): (&'static str, &str), details: impl Into<String>) -> Self {
        let (message, details) = (message.to_owned(), details.into());
        Self { kind, message, details, extra_info: Map::new(), node_errors: Map::new() }
    }

    /// For what has none of its own yet.
    pub(super) fn of_refusal(refusal: &Refusal) -> Self {
        match (refusal.kind, &refusal.place) {
            (RefusalKind::Empty, _) => Self::new(NO_OUTPUTS, ""),
            (RefusalKind::BadInput, Some(place)) => {
                let mut words = Self::new(FAILED, "");
                words.node_errors.insert(place.node_id.clone(), custom(place, &refusal.message));
                words
            }
            (kind, _) => {
                let mut words = Self::new(("invalid_prompt", ""), refusal.more.join("\n"));
                words.message.clone_from(&refusal.message);
                words.extra_info.insert("reason".to_owned(), kind.as_str().into());
                if let Some(limit) = refusal.limit {
                    words.extra_info.insert("limit".to_owned(), limit.into());
                }
                if let Some(place) = &refusal.place {
                    words.extra_info.insert("node_id".to_owned(), place.node_id.clone().into());
                }
                words
            }
        }
    }

    /// For what a check found. `details` says more where ComfyUI has nothing to say.
    pub(super) fn of_problems<'a>(
        workflow: &Workflow,
        info: Option<&ObjectInfo>,
        problems: impl IntoIterator<Item = &'a Problem>,
        details: String,
    ) -> Self {
        let problems: Vec<&Problem> = problems.into_iter().collect();
        if let Some(words) = problems.iter().find_map(|problem| no_node(workflow, problem)) {
            return words;
        }
        if problems.iter().any(|problem| problem.kind == Kind::NoOutputs) {
            return Self::new(NO_OUTPUTS, details);
        }
        let mut words = Self::new(FAILED, details);
        words.node_errors = node_errors(workflow, info, problems.iter().copied());
        if words.node_errors.is_empty() && words.details.is_empty() {
            words.details = problems.first().map(ToString::to_string).unwrap_or_default();
        }
        words
    }
}

/// Nodes that are none: the one case in which ComfyUI names a single node and stops.
fn no_node(workflow: &Workflow, problem: &Problem) -> Option<Words> {
    let id = problem.node_id.as_deref()?;
    let message = match (&problem.kind, &problem.class_type) {
        (Kind::UnknownClass { .. }, Some(class)) => {
            format!("Cannot execute because node {class} does not exist.")
        }
        (Kind::NoClassType | Kind::NodeNotObject, _) => {
            "Cannot execute because a node is missing the class_type property.".to_owned()
        }
        _ => return None,
    };
    let mut words = Words::new(("invalid_prompt", &message), format!("Node ID '#{id}'"));
    let title = workflow.node(id).and_then(|node| node.title().map(|title| title.into_owned()));
    words.extra_info.insert("node_id".to_owned(), id.into());
    if let Some(class) = &problem.class_type {
        words.extra_info.insert("class_type".to_owned(), class.clone().into());
        words.extra_info.insert("node_title".to_owned(), title.unwrap_or_else(|| class.clone()).into());
    }
    Some(words)
}

/// `node_errors`: what is wrong with which node, and which outputs do not run because of it.
pub(super) fn node_errors<'a>(
    workflow: &Workflow,
    info: Option<&ObjectInfo>,
    problems: impl IntoIterator<Item = &'a Problem>,
) -> Map<String, Value> {
    let mut by_node: IndexMap<&str, Vec<&Problem>> = IndexMap::new();
    for problem in problems {
        let Some(id) = problem.node_id.as_deref() else { continue };
        if by_node.len() >= MOST_NODES && !by_node.contains_key(id) {
            continue;
        }
        let of_node = by_node.entry(id).or_default();
        if of_node.len() < MOST_ERRORS {
            of_node.push(problem);
        }
    }
    if by_node.is_empty() {
        return Map::new();
    }
    let index = workflow.index();
    let mut dependent = Dependent::new(&index, info);
    let mut errors = Map::new();
    for (id, problems) in by_node {
        let class = problems.iter().find_map(|problem| problem.class_type.clone()).unwrap_or_default();
        let one = Node { index: &index, info, id, class: &class };
        let list: Vec<Value> = problems.into_iter().map(|problem| one.error(problem)).collect();
        errors.insert(
            id.to_owned(),
            json!({"errors": list, "dependent_outputs": dependent.on(id), "class_type": class}),
        );
    }
    errors
}

fn custom(place: &Place, message: &str) -> Value {
    let input = place.input.as_deref().unwrap_or_default();
    json!({
        "errors": [{
            "type": "custom_validation_failed",
            "message": "Custom validation failed for node",
            "details": format!("{input} - {message}"),
            "extra_info": {"input_name": input},
        }],
        "dependent_outputs": [],
        "class_type": place.class_type,
    })
}

/// Which output nodes need a node.
struct Dependent {
    users: HashMap<String, Vec<String>>,
    outputs: HashSet<String>,
    /// How many more nodes and links are looked at, for all questions together. A graph may be large, and so may the
    /// number of its faulty nodes.
    steps: usize,
}

impl Dependent {
    fn new(index: &Index<'_>, info: Option<&ObjectInfo>) -> Self {
        let mut users: HashMap<String, Vec<String>> = HashMap::new();
        let mut outputs = HashSet::new();
        for node in index.nodes() {
            for link in node.inputs().unwrap_or_default().iter().filter_map(|input| input.link()) {
                users.entry(link.node.into_owned()).or_default().push(node.id().to_owned());
            }
            let class = node.class_type().and_then(|class| info?.get(&class));
            if class.is_some_and(|class| class.output_node) {
                outputs.insert(node.id().to_owned());
            }
        }
        Self { users, outputs, steps: MOST_STEPS }
    }

    /// As many as a client shows, and as can be found in time.
    fn on(&mut self, id: &str) -> Vec<&str> {
        let mut seen: HashSet<&str> = HashSet::new();
        let mut open = vec![self.users.get_key_value(id).map_or(id, |(known, _)| known.as_str())];
        let mut found = Vec::new();
        while let Some(at) = open.pop().filter(|_| found.len() < MOST_DEPENDENT) {
            if !seen.insert(at) {
                continue;
            }
            if let Some(known) = self.outputs.get(at) {
                found.push(known.as_str());
            }
            let users = self.users.get(at).map(Vec::as_slice).unwrap_or_default();
            let Some(left) = self.steps.checked_sub(users.len() + 1) else { break };
            self.steps = left;
            open.extend(users.iter().map(String::as_str));
        }
        found.sort_unstable();
        found
    }
}

/// One node with something wrong.
struct Node<'a, 'w> {
    index: &'a Index<'w>,
    info: Option<&'a ObjectInfo>,
    id: &'a str,
    class: &'a str,
}

impl Node<'_, '_> {
    fn error(&self, problem: &Problem) -> Value {
        let name = problem.input.as_deref().unwrap_or_default();
        let received = self.received(name);
        let spec = self.info.and_then(|info| info.get(self.class)).and_then(|class| class.input(name));
        let config = spec.filter(|spec| is_small(spec)).map_or(Value::Null, input_config);
        let value = |value: &Value| cut(python(value, false));
        let (kind, message, details, more): (_, String, String, Value) = match &problem.kind {
            Kind::MissingInput => (
                "required_input_missing",
                "Required input is missing".to_owned(),
                name.to_owned(),
                json!({"input_name": name}),
            ),
            Kind::WrongType { expected } => {
                let exception =
                    conversion_error(expected, &received).unwrap_or_else(|| problem.message.clone());
                (
                    "invalid_input_type",
                    format!("Failed to convert an input value to a {expected} value"),
                    format!("{name}, {}, {exception}", value(&received)),
                    json!({"input_name": name, "input_config": config, "received_value": received, "exception_message": exception}),
                )
            }
            Kind::OutOfRange => {
                let number = received.as_f64();
                let limit = |limit: Option<&Value>| limit.map(|limit| (limit.as_f64(), value(limit)));
                let max = limit(spec.and_then(|spec| spec.max.as_ref()));
                let (kind, message) = match max {
                    Some((Some(max), text)) if number.is_some_and(|number| number > max) => (
                        "value_bigger_than_max",
                        format!("Value {} bigger than max of {text}", value(&received)),
                    ),
                    _ => {
                        let min = limit(spec.and_then(|spec| spec.min.as_ref()));
                        let text = min.map(|(_, text)| text).unwrap_or_default();
                        (
                            "value_smaller_than_min",
                            format!("Value {} smaller than min of {text}", value(&received)),
                        )
                    }
                };
                let more = json!({"input_name": name, "input_config": config, "received_value": received});
                (kind, message, name.to_owned(), more)
            }
            Kind::NotInList { .. } | Kind::MissingModel { .. } | Kind::MissingFile { .. } => {
                let choices = spec.and_then(|spec| spec.choices()).unwrap_or_default();
                let many = choices.len() > MOST_CHOICES;
                let list = match many {
                    true => format!("(list of length {})", choices.len()),
                    false => cut(python(&Value::Array(choices.to_vec()), true)),
                };
                let config = if many { Value::Null } else { config };
                (
                    "value_not_in_list",
                    "Value not in list".to_owned(),
                    format!("{name}: {} not in {list}", cut(python(&received, true))),
                    json!({"input_name": name, "input_config": config, "received_value": received}),
                )
            }
            Kind::BadLink if received.as_array().is_none_or(|list| list.len() != 2) => (
                "bad_linked_input",
                "Bad linked input, must be a length-2 list of [node_id, slot_index]".to_owned(),
                name.to_owned(),
                json!({"input_name": name, "input_config": config, "received_value": received}),
            ),
            Kind::TypeMismatch { received: from, expected } => (
                "return_type_mismatch",
                "Return type mismatch between linked nodes".to_owned(),
                format!("{name}, received_type({from}) mismatch input_type({expected})"),
                json!({"input_name": name, "input_config": config, "received_type": from, "linked_node": received}),
            ),
            other => {
                let (exception, details) = match other {
                    Kind::DanglingLink { to } => ("KeyError", format!("'{to}'")),
                    Kind::NoSuchOutput { .. } => ("IndexError", "tuple index out of range".to_owned()),
                    Kind::NoInputs => ("KeyError", "'inputs'".to_owned()),
                    Kind::Cycle { path } => {
                        ("RecursionError", cut(format!("dependency cycle: {}", path.join(" -> "))))
                    }
                    _ => ("ValueError", problem.message.clone()),
                };
                (
                    "exception_during_inner_validation",
                    "Exception when validating inner node".to_owned(),
                    details,
                    json!({"input_name": problem.input, "input_config": config, "exception_message": problem.message,
                        "exception_type": exception, "traceback": [], "linked_node": received}),
                )
            }
        };
        json!({"type": kind, "message": message, "details": details, "extra_info": more})
    }

    /// The value as it stands in the graph.
    fn received(&self, input: &str) -> Value {
        let input = self.index.input(self.id, input);
        match input {
            Some(input) if input.raw.get().len() > LONGEST => cut(input.raw.get().to_owned()).into(),
            input => input.and_then(|input| input.value()).unwrap_or_default(),
        }
    }
}

/// A text that is not longer than anybody reads.
fn cut(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push('…');
    }
    text
}

/// Whether a description is short enough to be repeated with every error.
fn is_small(spec: &InputSpec) -> bool {
    fn weigh(value: &Value, room: &mut usize) -> bool {
        let own = value.as_str().map_or(8, |text| text.len() + 8);
        *room = room.saturating_sub(own);
        *room > 0
            && match value {
                Value::Array(values) => values.iter().all(|value| weigh(value, room)),
                Value::Object(fields) => fields.iter().all(|(name, value)| {
                    *room = room.saturating_sub(name.len());
                    weigh(value, room)
                }),
                _ => true,
            }
    }
    let mut room = LONGEST;
    let limits = [&spec.default, &spec.min, &spec.max, &spec.step].into_iter().flatten();
    let values = limits.chain(spec.choices().unwrap_or_default()).chain(spec.options.values());
    values.into_iter().all(|value| weigh(value, &mut room))
}

/// `[type or list of choices, options]`.
fn input_config(spec: &InputSpec) -> Value {
    let mut options = Map::new();
    let known = [("default", &spec.default), ("min", &spec.min), ("max", &spec.max), ("step", &spec.step)];
    for (name, value) in known {
        if let Some(value) = value {
            options.insert(name.to_owned(), value.clone());
        }
    }
    options.extend(spec.options.clone());
    let kind = match &spec.kind {
        InputKind::Int => "INT".into(),
        InputKind::Float => "FLOAT".into(),
        InputKind::String => "STRING".into(),
        InputKind::Boolean => "BOOLEAN".into(),
        InputKind::Choice { options: list, classic: true } => Value::Array(list.clone()),
        InputKind::Choice { options: list, .. } => {
            options.insert("options".to_owned(), Value::Array(list.clone()));
            "COMBO".into()
        }
        InputKind::Link(kind) => kind.clone().into(),
        _ => "*".into(),
    };
    json!([kind, options])
}

/// What Python says of a value that is no number.
fn conversion_error(expected: &str, received: &Value) -> Option<String> {
    let text = cut(python(received, true));
    Some(match (expected, received) {
        ("INT", Value::String(_)) => format!("invalid literal for int() with base 10: {text}"),
        ("FLOAT", Value::String(_)) => format!("could not convert string to float: {text}"),
        ("INT", Value::Null) => {
            "int() argument must be a string, a bytes-like object or a real number, not 'NoneType'".to_owned()
        }
        ("FLOAT", Value::Null) => {
            "float() argument must be a string or a real number, not 'NoneType'".to_owned()
        }
        _ => return None,
    })
}

/// A value as Python prints it: texts bare, or quoted.
fn python(value: &Value, quoted: bool) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) if !quoted => text.clone(),
        Value::String(text) if text.contains('\'') && !text.contains('"') => format!("\"{text}\""),
        Value::String(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
        Value::Array(list) => {
            let parts: Vec<String> = list.iter().map(|one| python(one, true)).collect();
            format!("[{}]", parts.join(", "))
        }
        other => other.to_string(),
    }
}
