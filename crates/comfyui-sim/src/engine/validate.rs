//! What POST /prompt refuses, what it wrongly accepts, and the conversions it makes on the way.
//!
//! A node is checked after everything it is linked to. That order, the place at which an error is
//! reported and the texts are ComfyUI's; an error of a linked node is not repeated at the node below it.

use super::convert::convert;
use super::graph::is_number;
use super::python::{Exception, Frame};
use crate::config::Profile;
use crate::engine::Dirs;
use crate::json::{Dict, Json, dict, list};
use crate::nodes::{Class, FilledInput, Registry, files};
use indexmap::IndexMap;
use std::collections::HashSet;

/// Longer lists of choices are not repeated in an error.
const SHOWN_CHOICES: usize = 20;

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
        Verdict {
            refusal: Some(error),
            outputs: Vec::new(),
            node_errors,
        }
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
    let mut check = Check {
        registry,
        dirs,
        profile,
        nodes,
        checked: IndexMap::new(),
    };
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
    Ok(Verdict {
        refusal: None,
        outputs: good,
        node_errors,
    })
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
        Ok(Err(Verdict::refused(
            "invalid_prompt",
            message,
            format!("Node ID '#{id}'"),
            Dict::new(),
        )))
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
            return refused(
                format!("Cannot execute because node {} does not exist.", class_type.str()),
                id,
            );
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

/// A node that is being checked: its links one after the other, then itself.
struct Visit {
    id: String,
    links: Vec<(String, Json, FilledInput)>,
    next: usize,
    sound: bool,
}

struct Check<'a> {
    registry: &'a Registry,
    dirs: &'a Dirs,
    profile: Profile,
    nodes: &'a mut Dict,
    /// Errors of every node that was looked at; `None` means good.
    checked: IndexMap<String, Option<Vec<Json>>>,
}

impl Check<'_> {
    /// Checks an output and all above it. `None` means good, else the errors of the output itself.
    fn output(&mut self, id: &str) -> Option<Vec<Json>> {
        match self.visit(id) {
            Ok(()) => self.checked.get(id).cloned().unwrap_or_default(),
            Err(exception) => {
                let error = dict([
                    ("type", "exception_during_validation".into()),
                    ("message", "Exception when validating node".into()),
                    ("details", exception.message.as_str().into()),
                    (
                        "extra_info",
                        dict([
                            ("exception_type", exception.kind.as_str().into()),
                            (
                                "traceback",
                                exception.traceback(&[frame(1043, "validate_prompt")]),
                            ),
                        ]),
                    ),
                ]);
                self.checked.insert(id.to_owned(), Some(vec![error.clone()]));
                Some(vec![error])
            }
        }
    }

    /// Adds what is known so far to the answer, as depending on that output.
    fn report(&self, output: &str, node_errors: &mut Dict) {
        for (id, errors) in &self.checked {
            let Some(errors) = errors.as_ref().filter(|errors| !errors.is_empty()) else {
                continue;
            };
            let entry = node_errors.entry(id.clone()).or_insert_with(|| {
                let class = self
                    .nodes
                    .get(id)
                    .and_then(|node| node.get("class_type"))
                    .cloned();
                dict([
                    ("errors", Json::List(errors.clone())),
                    ("dependent_outputs", Json::List(Vec::new())),
                    ("class_type", class.unwrap_or(Json::Null)),
                ])
            });
            if let Some(Json::List(outputs)) = entry
                .as_dict_mut()
                .and_then(|entry| entry.get_mut("dependent_outputs"))
            {
                outputs.push(output.into());
            }
        }
    }

    /// Checks everything above a node, then the node. A stack of our own instead of recursion: a prompt may
    /// be a very long chain.
    fn visit(&mut self, id: &str) -> Result<(), Exception> {
        if self.checked.contains_key(id) {
            return Ok(());
        }
        let mut stack = vec![self.open(id)?];
        let mut open = HashSet::from([id.to_owned()]);
        while let Some(visit) = stack.last_mut() {
            let Some((input, link, config)) = visit.links.get(visit.next).cloned() else {
                let (id, sound) = (visit.id.clone(), visit.sound);
                stack.pop();
                open.remove(&id);
                let result = self.close(&id, sound);
                if let Err(exception) = result {
                    let Some(parent) = stack.last_mut() else {
                        return Err(exception);
                    };
                    let (input, link, config) = parent.links[parent.next - 1].clone();
                    parent.sound = false;
                    self.blame(&id, &input, &link, &config, &exception);
                } else if self.is_bad(&id)
                    && let Some(parent) = stack.last_mut()
                {
                    parent.sound = false;
                }
                continue;
            };
            visit.next += 1;
            let above = link
                .as_list()
                .and_then(<[Json]>::first)
                .map(Json::str)
                .unwrap_or_default();
            if open.contains(&above) {
                // A cycle: ComfyUI runs out of stack, calls the nodes bad and forgets why.
                visit.sound = false;
            } else if self.checked.contains_key(&above) {
                visit.sound &= !self.is_bad(&above);
            } else {
                match self.open(&above) {
                    Ok(next) => {
                        open.insert(above);
                        stack.push(next);
                    }
                    Err(exception) => {
                        visit.sound = false;
                        self.blame(&above, &input, &link, &config, &exception);
                    }
                }
            }
        }
        Ok(())
    }

    fn is_bad(&self, id: &str) -> bool {
        matches!(self.checked.get(id), Some(Some(_)))
    }

    /// An exception in a linked node is reported at that node, with the input that led there.
    fn blame(&mut self, id: &str, input: &str, link: &Json, config: &FilledInput, exception: &Exception) {
        let error = dict([
            ("type", "exception_during_inner_validation".into()),
            ("message", "Exception when validating inner node".into()),
            ("details", exception.message.as_str().into()),
            (
                "extra_info",
                dict([
                    ("input_name", input.into()),
                    ("input_config", config.config()),
                    ("exception_message", exception.message.as_str().into()),
                    ("exception_type", exception.kind.as_str().into()),
                    ("traceback", exception.traceback(&[frame(838, "validate_inputs")])),
                    ("linked_node", link.clone()),
                ]),
            ),
        ]);
        self.checked.insert(id.to_owned(), Some(vec![error]));
    }

    fn class_of(&self, id: &str) -> Option<&Class> {
        self.registry
            .get(self.nodes.get(id)?.get("class_type")?.as_str()?)
    }

    /// Finds the links of a node that lead to nodes of a fitting type.
    fn open(&self, id: &str) -> Result<Visit, Exception> {
        let mut visit = Visit {
            id: id.to_owned(),
            links: Vec::new(),
            next: 0,
            sound: true,
        };
        let inputs = self.inputs_of(id)?;
        let Some(class) = self.class_of(id) else {
            return Ok(visit);
        };
        for input in &class.inputs {
            let value = member(inputs, &input.name)?;
            if let Some(Json::List(link)) = value
                && link.len() == 2
            {
                let config = self.registry.fill(input);
                let received = self.type_of(link)?;
                if fits(&received, &config.kind) {
                    visit
                        .links
                        .push((input.name.clone(), Json::List(link.clone()), config));
                }
            }
        }
        Ok(visit)
    }

    fn inputs_of(&self, id: &str) -> Result<&Json, Exception> {
        self.nodes
            .get(id)
            .and_then(|node| node.get("inputs"))
            .ok_or_else(|| raised("KeyError", "'inputs'", 755))
    }

    /// The type at the other end of a link.
    fn type_of(&self, link: &[Json]) -> Result<String, Exception> {
        let (node, slot) = (&link[0], &link[1]);
        let id = match node {
            Json::List(_) | Json::Dict(_) => {
                return Err(raised(
                    "TypeError",
                    format!("unhashable type: '{}'", node.type_name()),
                    818,
                ));
            }
            Json::Str(id) if self.nodes.contains_key(id) => id,
            _ => return Err(raised("KeyError", node.repr(), 818)),
        };
        let Some(class) = self.class_of(id) else {
            return Err(raised("KeyError", "'class_type'", 818));
        };
        let sequence = if class.newer { "list" } else { "tuple" };
        if !is_number(slot) || matches!(slot, Json::Float(_)) {
            let message = format!(
                "{sequence} indices must be integers or slices, not {}",
                slot.type_name()
            );
            return Err(raised("TypeError", message, 820));
        }
        super::graph::pick(&class.returns, slot)
            .cloned()
            .ok_or_else(|| raised("IndexError", format!("{sequence} index out of range"), 820))
    }

    /// Checks a node whose links are all known, and converts its values.
    fn close(&mut self, id: &str, mut sound: bool) -> Result<(), Exception> {
        let Some(class) = self.class_of(id) else {
            return Ok(());
        };
        let own_check = files::named_by(&class.name);
        let mut errors = Vec::new();
        let mut converted = Vec::new();
        let inputs = self.inputs_of(id)?;
        for input in &class.inputs {
            let Some(value) = member(inputs, &input.name)? else {
                if input.required {
                    errors.push(complaint(
                        "required_input_missing",
                        "Required input is missing",
                        input.name.clone(),
                        dict([("input_name", Json::from(&input.name))]),
                    ));
                }
                continue;
            };
            let config = self.registry.fill(input);
            let place = Place {
                name: &input.name,
                config: &config,
            };
            if let Json::List(link) = value {
                match self.check_link(place, link) {
                    Ok(()) => {
                        let above = link.first().map(Json::str).unwrap_or_default();
                        sound &= !self.is_bad(&above);
                    }
                    Err(error) => errors.push(error),
                }
                continue;
            }
            let value = match value.get("__value__") {
                Some(wrapped) => {
                    converted.push((input.name.clone(), wrapped.clone()));
                    wrapped
                }
                None => value,
            };
            let value = match convert(config.type_name().unwrap_or_default(), value) {
                Ok(value) => value,
                Err(message) => {
                    errors.push(place.not_converted(value, &message));
                    continue;
                }
            };
            converted.push((input.name.clone(), value.clone()));
            if own_check.is_none_or(|(checked, _)| checked != input.name)
                && let Some(error) = place.check_value(&value, self.profile)
            {
                errors.push(error);
            }
        }
        if let Some(Json::Dict(inputs)) = self
            .nodes
            .get_mut(id)
            .and_then(|node| node.as_dict_mut()?.get_mut("inputs"))
        {
            for (name, value) in converted {
                inputs.insert(name, value);
            }
        }
        if let Some((input, what)) = own_check {
            errors.extend(self.check_file(id, input, what)?);
        }
        let good = sound && errors.is_empty();
        self.checked
            .insert(id.to_owned(), if good { None } else { Some(errors) });
        Ok(())
    }

    /// What is wrong with a link itself; what is wrong behind it was found before.
    fn check_link(&self, place: Place<'_>, link: &[Json]) -> Result<(), Json> {
        let linked = Json::List(link.to_vec());
        if link.len() != 2 {
            return Err(complaint(
                "bad_linked_input",
                "Bad linked input, must be a length-2 list of [node_id, slot_index]",
                place.name.to_owned(),
                place.info([("received_value", linked)]),
            ));
        }
        // A link that leads nowhere raised already when the node was opened.
        let received = self.type_of(link).unwrap_or_default();
        if fits(&received, &place.config.kind) {
            return Ok(());
        }
        let details = format!(
            "{}, received_type({received}) mismatch input_type({})",
            place.name,
            place.config.kind.str()
        );
        Err(complaint(
            "return_type_mismatch",
            "Return type mismatch between linked nodes",
            details,
            place.info([("received_type", received.into()), ("linked_node", linked)]),
        ))
    }

    /// The own check of the nodes that name a file.
    fn check_file(&self, id: &str, input: &str, what: &str) -> Result<Option<Json>, Exception> {
        let class = self.class_of(id);
        let newer = class.is_some_and(|class| class.newer);
        let name = class.map(|class| class.name.as_str()).unwrap_or_default();
        let function = if newer {
            "validate_inputs"
        } else {
            "VALIDATE_INPUTS"
        };
        let problem = match member(self.inputs_of(id)?, input)? {
            None => {
                let message =
                    format!("{name}.{function}() missing 1 required positional argument: '{input}'");
                return Err(raised("TypeError", message, 965));
            }
            Some(Json::Str(file)) if files::annotated(self.dirs, file).exists() => return Ok(None),
            Some(Json::Str(file)) => format!("{input} - Invalid {what} file: {file}"),
            Some(other) => {
                let kind = if matches!(other, Json::List(_)) {
                    "NoneType"
                } else {
                    other.type_name()
                };
                let message = format!("'{kind}' object has no attribute 'endswith'");
                return Err(raised("AttributeError", message, 965));
            }
        };
        Ok(Some(complaint(
            "custom_validation_failed",
            "Custom validation failed for node",
            problem,
            dict([("input_name", input.into())]),
        )))
    }
}

/// `inputs[name]` if `name in inputs`, for whatever somebody put under `inputs`.
fn member<'a>(inputs: &'a Json, name: &str) -> Result<Option<&'a Json>, Exception> {
    match inputs {
        Json::Dict(members) => Ok(members.get(name)),
        _ => match contains(inputs, name) {
            Ok(false) => Ok(None),
            Ok(true) => {
                let message = match inputs {
                    Json::Str(_) => "string indices must be integers, not 'str'".to_owned(),
                    _ => "list indices must be integers or slices, not str".to_owned(),
                };
                Err(raised("TypeError", message, 800))
            }
            Err(Trouble) => {
                let message = format!("argument of type '{}' is not iterable", inputs.type_name());
                Err(raised("TypeError", message, 786))
            }
        },
    }
}

fn frame(line: u32, function: &str) -> Frame {
    Frame::comfy("execution.py", line, function)
}

fn raised(kind: &str, message: impl Into<String>, line: u32) -> Exception {
    Exception::new(kind, message).raised_in([frame(line, "validate_inputs")])
}

fn complaint(kind: &str, message: &str, details: String, extra_info: Json) -> Json {
    dict([
        ("type", kind.into()),
        ("message", message.into()),
        ("details", details.into()),
        ("extra_info", extra_info),
    ])
}

/// Whether a link of one type may end at an input of another; both may list several types.
fn fits(received: &str, wanted: &Json) -> bool {
    let Some(wanted) = wanted.as_str() else {
        return false;
    };
    let types = |text: &str| {
        text.split(',')
            .map(|name| name.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let (received, wanted) = (types(received), types(wanted));
    received.iter().any(|name| name == "*" || wanted.contains(name)) || wanted.iter().any(|name| name == "*")
}

/// The input that an error is about.
#[derive(Clone, Copy)]
struct Place<'a> {
    name: &'a str,
    config: &'a FilledInput,
}

impl Place<'_> {
    fn info<const N: usize>(&self, more: [(&str, Json); N]) -> Json {
        self.info_with(self.config.config(), more)
    }

    fn info_with<const N: usize>(&self, config: Json, more: [(&str, Json); N]) -> Json {
        let mut info = Dict::new();
        info.insert("input_name".into(), self.name.into());
        info.insert("input_config".into(), config);
        info.extend(more.map(|(key, value)| (key.to_owned(), value)));
        Json::Dict(info)
    }

    fn not_converted(&self, value: &Json, message: &str) -> Json {
        complaint(
            "invalid_input_type",
            &format!(
                "Failed to convert an input value to a {} value",
                self.config.type_name().unwrap_or_default()
            ),
            format!("{}, {}, {message}", self.name, value.str()),
            self.info([
                ("received_value", value.clone()),
                ("exception_message", message.into()),
            ]),
        )
    }

    /// Limits and choices.
    fn check_value(&self, value: &Json, profile: Profile) -> Option<Json> {
        use std::cmp::Ordering::{Greater, Less};
        let limits = [
            ("min", Less, "value_smaller_than_min", "smaller than min"),
            ("max", Greater, "value_bigger_than_max", "bigger than max"),
        ];
        for (option, wrong, kind, words) in limits {
            if let Some(limit) = self.config.options.get(option)
                && value.compare_numbers(limit) == Some(wrong)
            {
                return Some(complaint(
                    kind,
                    &format!("Value {} {words} of {}", value.str(), limit.str()),
                    self.name.to_owned(),
                    self.info([("received_value", value.clone())]),
                ));
            }
        }
        // Only 0.7.0 looks into the newer notation of choices.
        if self.config.type_name().is_some() && profile < Profile::V0_7_0 {
            return None;
        }
        let choices = self.config.choices()?;
        if choices.iter().any(|choice| choice.python_eq(value)) {
            return None;
        }
        let (shown, config) = if choices.len() > SHOWN_CHOICES {
            (format!("(list of length {})", choices.len()), Json::Null)
        } else {
            (list(choices.iter().cloned()).str(), self.config.config())
        };
        Some(complaint(
            "value_not_in_list",
            "Value not in list",
            format!("{}: '{}' not in {shown}", self.name, value.str()),
            self.info_with(config, [("received_value", value.clone())]),
        ))
    }
}
