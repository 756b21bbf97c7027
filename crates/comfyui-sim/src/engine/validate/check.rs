//! One node after the other: links first, then values.

use super::complaint::{Place, complaint, frame, own_check_frames, raised};
use super::{Trouble, contains};
use crate::config::Profile;
use crate::engine::convert::convert;
use crate::engine::graph::{is_number, pick};
use crate::engine::{Dirs, Exception, Frame};
use crate::json::{Dict, Json, dict};
use crate::nodes::{Class, FilledInput, Registry, files};
use indexmap::IndexMap;
use std::collections::HashSet;

/// A node that is being checked: its links one after the other, then itself.
struct Visit {
    id: String,
    links: Vec<(String, Json, FilledInput)>,
    next: usize,
    sound: bool,
}

pub(super) struct Check<'a> {
    registry: &'a Registry,
    dirs: &'a Dirs,
    profile: Profile,
    nodes: &'a mut Dict,
    /// Errors of every node that was looked at; `None` means good.
    checked: IndexMap<String, Option<Vec<Json>>>,
}

impl<'a> Check<'a> {
    pub(super) fn new(
        registry: &'a Registry,
        dirs: &'a Dirs,
        profile: Profile,
        nodes: &'a mut Dict,
    ) -> Check<'a> {
        Check { registry, dirs, profile, nodes, checked: IndexMap::new() }
    }

    /// Checks an output and all above it. `None` means good, else the errors of the output itself.
    pub(super) fn output(&mut self, id: &str) -> Option<Vec<Json>> {
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
                            ("traceback", exception.traceback(&[frame(1043, "validate_prompt")])),
                        ]),
                    ),
                ]);
                self.checked.insert(id.to_owned(), Some(vec![error.clone()]));
                Some(vec![error])
            }
        }
    }

    /// Adds what is known so far to the answer, as depending on that output.
    pub(super) fn report(&self, output: &str, node_errors: &mut Dict) {
        for (id, errors) in &self.checked {
            let Some(errors) = errors.as_ref().filter(|errors| !errors.is_empty()) else {
                continue;
            };
            let entry = node_errors.entry(id.clone()).or_insert_with(|| {
                let class = self.nodes.get(id).and_then(|node| node.get("class_type")).cloned();
                dict([
                    ("errors", Json::List(errors.clone())),
                    ("dependent_outputs", Json::List(Vec::new())),
                    ("class_type", class.unwrap_or(Json::Null)),
                ])
            });
            if let Some(Json::List(outputs)) =
                entry.as_dict_mut().and_then(|entry| entry.get_mut("dependent_outputs"))
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
            let above = link.as_list().and_then(<[Json]>::first).map(Json::str).unwrap_or_default();
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
        self.registry.get(self.nodes.get(id)?.get("class_type")?.as_str()?)
    }

    /// Finds the links of a node that lead to nodes of a fitting type.
    fn open(&self, id: &str) -> Result<Visit, Exception> {
        let mut visit = Visit { id: id.to_owned(), links: Vec::new(), next: 0, sound: true };
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
                    visit.links.push((input.name.clone(), Json::List(link.clone()), config));
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
                return Err(raised("TypeError", format!("unhashable type: '{}'", node.type_name()), 818));
            }
            Json::Str(id) if self.nodes.contains_key(id) => id,
            _ => return Err(raised("KeyError", node.repr(), 818)),
        };
        let Some(class) = self.class_of(id) else {
            return Err(raised("KeyError", "'class_type'", 818));
        };
        let sequence = if class.newer { "list" } else { "tuple" };
        if !is_number(slot) || matches!(slot, Json::Float(_)) {
            let message = format!("{sequence} indices must be integers or slices, not {}", slot.type_name());
            return Err(raised("TypeError", message, 820));
        }
        pick(&class.returns, slot)
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
            let place = Place { name: &input.name, config: &config };
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
        if let Some(Json::Dict(inputs)) =
            self.nodes.get_mut(id).and_then(|node| node.as_dict_mut()?.get_mut("inputs"))
        {
            for (name, value) in converted {
                inputs.insert(name, value);
            }
        }
        if let Some((input, what)) = own_check {
            errors.extend(self.check_file(id, input, what)?);
        }
        let good = sound && errors.is_empty();
        self.checked.insert(id.to_owned(), if good { None } else { Some(errors) });
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
        let function = if newer { "validate_inputs" } else { "VALIDATE_INPUTS" };
        let problem = match member(self.inputs_of(id)?, input)? {
            None => {
                let message =
                    format!("{name}.{function}() missing 1 required positional argument: '{input}'");
                return Err(Exception::new("TypeError", message).raised_in(own_check_frames(299, newer)));
            }
            Some(Json::Str(file)) if files::annotated(self.dirs, file).exists() => return Ok(None),
            Some(Json::Str(file)) => format!("{input} - Invalid {what} file: {file}"),
            Some(other) => {
                let kind = if matches!(other, Json::List(_)) { "NoneType" } else { other.type_name() };
                let message = format!("'{kind}' object has no attribute 'endswith'");
                let mut frames = own_check_frames(303, newer);
                frames.push(Frame::comfy("nodes.py", 1715, function));
                frames.push(Frame::comfy("folder_paths.py", 272, "exists_annotated_filepath"));
                frames.push(Frame::comfy("folder_paths.py", 244, "annotated_filepath"));
                return Err(Exception::new("AttributeError", message).raised_in(frames));
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

/// Whether a link of one type may end at an input of another; both may list several types.
fn fits(received: &str, wanted: &Json) -> bool {
    let Some(wanted) = wanted.as_str() else {
        return false;
    };
    let types = |text: &str| text.split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>();
    let (received, wanted) = (types(received), types(wanted));
    received.iter().any(|name| name == "*" || wanted.contains(name)) || wanted.iter().any(|name| name == "*")
}
