//! Checks of literal values against what the class declares.

use std::cmp::Ordering;

use serde_json::Value;

use crate::object_info::{
    Dynamic, InputKind, InputSpec, NodeInfo, ObjectInfo, has_model_ending, model_folder,
};

use super::expand::is_part_of_dynamic;
use super::findings::Findings;
use super::graph::{GraphInput, GraphNode};
use super::nearest::nearest;
use super::report::{Kind, Noticed};
use super::values::{self, Converted, Number, python_equal};

/// Inputs that the frontend writes beside the real ones; no server minds them.
const FRONTEND_EXTRAS: [&str; 4] = ["upload", "audioUI", "videopreview", "choose video to upload"];

/// Checks the inputs of a node whose class is known.
pub(super) fn check_node(
    node: &GraphNode<'_>,
    info: &NodeInfo,
    all: &ObjectInfo,
    findings: &mut Findings<'_>,
) {
    let Some(inputs) = &node.inputs else { return };
    for expected in &node.expected {
        let name = expected.name.as_str();
        match inputs.iter().find(|input| input.input.name == name) {
            Some(input) if !input.input.is_list() => {
                Check { node, info, all, spec: expected.spec, input }.run(findings);
            }
            Some(_) => {}
            None if expected.required => {
                let message = "is required, but not given".to_owned();
                findings.refuse(node, name, Kind::MissingInput, message);
            }
            None => {}
        }
    }
    for input in inputs.iter().filter(|input| input.declared == Some(false)) {
        undeclared(node, info, input, findings);
    }
}

/// An input that the class does not declare.
fn undeclared(node: &GraphNode<'_>, info: &NodeInfo, input: &GraphInput<'_>, findings: &mut Findings<'_>) {
    let name = input.input.name.as_ref();
    let dynamic = info.inputs.iter().find(|spec| spec.name == name).map(|spec| &spec.kind);
    if let Some(InputKind::Dynamic(Dynamic::Combo { options })) = dynamic {
        let available = options.iter().map(|(key, _)| text_of(key)).collect();
        let message = format!("{} is none of the choices", input.input.raw.get());
        let kind = Kind::NotInList { available };
        findings.suspect(node, name, Noticed::AtRunTime, kind, message);
        return;
    }
    let hidden = info.input(name).is_some();
    if hidden
        || FRONTEND_EXTRAS.contains(&name)
        || is_part_of_dynamic(info, name)
        || comes_with_a_format(info, name)
    {
        return;
    }
    let (noticed, message) = match &input.link {
        Some(_) => {
            (Noticed::AtRunTime, "is linked, but the class has no such input, so that the node may fail")
        }
        None => (Noticed::Never, "is not an input of the class and goes unread"),
    };
    findings.suspect(node, name, noticed, Kind::UnknownInput, message.to_owned());
}

/// VideoHelperSuite lists further inputs under `formats` of another one: format → `[[name, type, …], …]`.
fn comes_with_a_format(info: &NodeInfo, name: &str) -> bool {
    let formats = info.inputs.iter().filter_map(|input| input.options.get("formats")?.as_object());
    let mut lists = formats.flat_map(|formats| formats.values()).filter_map(Value::as_array);
    lists.any(|inputs| inputs.iter().any(|input| input.get(0).is_some_and(|known| known == name)))
}

/// One literal value and everything that is known about its input.
struct Check<'c, 'a> {
    node: &'c GraphNode<'a>,
    info: &'c NodeInfo,
    all: &'c ObjectInfo,
    spec: &'c InputSpec,
    input: &'c GraphInput<'a>,
}

impl Check<'_, '_> {
    fn run(&self, findings: &mut Findings<'_>) {
        let Some(value) = self.input.input.value() else {
            return;
        };
        let raw = self.input.input.raw.get();
        // The frontend wraps values that are lists, so that they are not taken for links.
        let (value, raw) = match value {
            Value::Object(mut wrapper) if wrapper.contains_key("__value__") => {
                let inner = wrapper.remove("__value__").unwrap_or_default();
                let raw = inner.to_string();
                (inner, raw)
            }
            value => (value, raw.to_owned()),
        };
        match &self.spec.kind {
            InputKind::Int => {
                self.number("INT", "a whole number", &raw, values::to_int(&raw, &value), findings)
            }
            InputKind::Float => {
                self.number("FLOAT", "a number", &raw, values::to_float(&raw, &value), findings)
            }
            InputKind::String => self.text(&value, findings),
            InputKind::Boolean => self.truth(&value, findings),
            InputKind::Choice { options, .. } => self.choice(options, &value, findings),
            InputKind::Link(kind) => self.socket(kind, &raw, findings),
            InputKind::Any | InputKind::Dynamic(_) => {}
        }
    }

    fn refuse(&self, kind: Kind, message: String, findings: &mut Findings<'_>) {
        let name = self.input.input.name.as_ref();
        findings.refuse(self.node, name, kind, message);
    }

    fn suspect(&self, noticed: Noticed, kind: Kind, message: String, findings: &mut Findings<'_>) {
        let name = self.input.input.name.as_ref();
        findings.suspect(self.node, name, noticed, kind, message);
    }

    fn number(
        &self,
        kind: &str,
        article: &str,
        raw: &str,
        converted: Option<Converted>,
        findings: &mut Findings<'_>,
    ) {
        let wrong = Kind::WrongType { expected: kind.to_owned() };
        let Some(Converted { number, surprise }) = converted else {
            return self.refuse(wrong, format!("takes {article}, not {}", shown(raw)), findings);
        };
        if !number.is_finite() {
            let message = format!("{} is not a finite number; {NON_FINITE_HARM}", shown(raw));
            let name = self.input.input.name.as_ref();
            findings.kill(self.node, Some(name), Kind::NonFinite, message);
            return;
        }
        if let Some(surprise) = surprise {
            self.suspect(
                Noticed::Never,
                wrong,
                format!("takes {article}; of {} {surprise}", shown(raw)),
                findings,
            );
        }
        self.range(number, raw, findings);
    }

    fn range(&self, number: Number, raw: &str, findings: &mut Findings<'_>) {
        let beyond = |limit: &Option<Value>, side: Ordering| {
            let limit = limit.as_ref()?;
            (number.compare(Number::of(limit)?) == Some(side)).then(|| limit.to_string())
        };
        if let Some(min) = beyond(&self.spec.min, Ordering::Less) {
            self.refuse(
                Kind::OutOfRange,
                format!("{} is less than {min}, the smallest allowed", shown(raw)),
                findings,
            );
        } else if let Some(max) = beyond(&self.spec.max, Ordering::Greater) {
            self.refuse(
                Kind::OutOfRange,
                format!("{} is more than {max}, the largest allowed", shown(raw)),
                findings,
            );
        }
    }

    /// Everything becomes a text, which is not always a sensible one.
    fn text(&self, value: &Value, findings: &mut Findings<'_>) {
        let becomes = match value {
            Value::Null => "null becomes the text None",
            Value::Bool(true) => "true becomes the text True",
            Value::Bool(false) => "false becomes the text False",
            Value::Object(_) | Value::Array(_) => "the value becomes the text that Python prints for it",
            Value::String(_) | Value::Number(_) => return,
        };
        let kind = Kind::WrongType { expected: "STRING".to_owned() };
        self.suspect(Noticed::Never, kind, format!("takes a text; {becomes}"), findings);
    }

    fn truth(&self, value: &Value, findings: &mut Findings<'_>) {
        if let Value::String(text) = value {
            let kind = Kind::WrongType { expected: "BOOLEAN".to_owned() };
            let message = match text.is_empty() {
                true => "takes true or false; an empty text counts as false".to_owned(),
                false => format!("takes true or false; {text:?}, like any other text, counts as true"),
            };
            self.suspect(Noticed::Never, kind, message, findings);
        }
    }

    fn choice(&self, choices: &[Value], value: &Value, findings: &mut Findings<'_>) {
        if choices.iter().any(|choice| python_equal(choice, value)) {
            return;
        }
        let option = |name: &str| self.spec.options.get(name).is_some_and(|on| *on != Value::Bool(false));
        let name = self.spec.name.as_str();
        let class = self.info.class.as_str();
        if self.spec.upload.is_some() || (class, name) == ("LoadLatent", "latent") {
            return self.file(value, option("remote"), findings);
        }
        // Lists that the frontend fetches elsewhere or that the node does not keep to cannot be checked from here.
        let unchecked = [option("remote"), option("multiselect"), option("multi_select")];
        if unchecked.contains(&true) || (class, name) == ("CustomCombo", "choice") {
            return;
        }
        let texts = || choices.iter().filter_map(Value::as_str);
        let folder = model_folder(class, name);
        if let Value::String(asked) = value
            && (folder.is_some() || has_model_ending(asked) || self.spec.lists_models())
        {
            let available = self.nearest(asked, texts(), findings);
            let total = choices.len();
            let place = folder.map_or("the list".to_owned(), |folder| format!("the folder {folder}"));
            let message =
                format!("there is no model {asked:?} here; {place} has {}", listed(&available, total));
            let kind = Kind::MissingModel {
                folder: folder.map(str::to_owned),
                model: asked.clone(),
                available,
                total,
            };
            return self.refuse(kind, message, findings);
        }
        let asked = text_of(value);
        let available = match choices.iter().all(Value::is_string) {
            true => self.nearest(&asked, texts(), findings),
            false => choices.iter().take(findings.options.listed).map(text_of).collect(),
        };
        let message = format!(
            "{} is none of the choices: {}",
            shown(&value.to_string()),
            listed(&available, choices.len())
        );
        self.refuse(Kind::NotInList { available }, message, findings);
    }

    fn nearest<'t>(
        &self,
        asked: &str,
        names: impl Iterator<Item = &'t str>,
        findings: &mut Findings<'_>,
    ) -> Vec<String> {
        let limit = findings.options.listed;
        match findings.may_rank() {
            true => nearest(asked, names, limit),
            false => names.take(limit).map(str::to_owned).collect(),
        }
    }

    /// A file of the input folder. The list has only what lies in the folder itself; names with a folder or with a
    /// mark such as `[output]` are looked for elsewhere, and a remote list is not known here.
    fn file(&self, value: &Value, remote: bool, findings: &mut Findings<'_>) {
        let Value::String(file) = value else {
            let kind = Kind::WrongType { expected: "STRING".to_owned() };
            return self.refuse(
                kind,
                format!("takes the name of a file, not {}", shown(&value.to_string())),
                findings,
            );
        };
        let elsewhere = remote || file.contains(['/', '\\']) || file.ends_with(']');
        if !elsewhere && findings.options.check_files {
            let message = format!("there is no file {file:?} in the input folder; upload it first");
            self.refuse(Kind::MissingFile { file: file.clone() }, message, findings);
        }
    }

    /// A literal where a link is meant. Types that no node puts out have a widget of their own and take literals.
    fn socket(&self, kind: &str, raw: &str, findings: &mut Findings<'_>) {
        if let Some(number) = Number::parse(raw) {
            self.range(number, raw, findings);
        }
        let made =
            |part: &str| self.all.iter().any(|node| node.outputs.iter().any(|output| output.kind == part));
        let takes_literals =
            |part: &str| matches!(part, "INT" | "FLOAT" | "STRING" | "BOOLEAN" | "COMBO" | "*");
        if kind.split(',').map(str::trim).all(|part| made(part) && !takes_literals(part)) {
            let message = format!("takes a link to {kind}, not {}; the node is likely to fail", shown(raw));
            let kind = Kind::WrongType { expected: kind.to_owned() };
            self.suspect(Noticed::AtRunTime, kind, message, findings);
        }
    }
}

/// Why numbers that are not finite must not be sent.
pub(super) const NON_FINITE_HARM: &str = "it comes back as a bare NaN or Infinity in the queue and the history, which many clients then cannot read";

/// A value for a message: not the whole novel when it is long.
fn shown(json: &str) -> String {
    const LONGEST: usize = 80;
    match json.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &json[..end]),
        None => json.to_owned(),
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What there is, for a message.
fn listed(available: &[String], total: usize) -> String {
    let quoted: Vec<_> = available.iter().map(|name| format!("{name:?}")).collect();
    match (total, total.saturating_sub(available.len())) {
        (0, _) => "none".to_owned(),
        (_, 0) => quoted.join(", "),
        (_, more) => format!("{} and {more} more", quoted.join(", ")),
    }
}
