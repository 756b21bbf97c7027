//! Checks of literal values against what the class declares.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use crate::object_info::{
    Dynamic, InputKind, InputSpec, NodeInfo, ObjectInfo, has_model_ending, model_folder,
};

use super::findings::Findings;
use super::graph::{GraphInput, GraphNode};
use super::known::{Known, Lookup};
use super::nearest::nearest;
use super::report::{Kind, Noticed};
use super::values::{self, Converted, Number};

/// Inputs that the frontend writes beside the real ones; no server minds them.
const FRONTEND_EXTRAS: [&str; 4] = ["upload", "audioUI", "videopreview", "choose video to upload"];

/// An object that is longer is not looked into.
const OPAQUE: usize = 64 << 10;

/// Checks the inputs of a node whose class is known.
pub(super) fn check_node<'a>(
    node: &GraphNode<'a>,
    info: &'a NodeInfo,
    all: &'a ObjectInfo,
    known: &mut Known<'a>,
    findings: &mut Findings<'_>,
) {
    let Some(inputs) = &node.inputs else { return };
    let names = Lookup::new(inputs.iter().map(|input| input.input.name.as_ref()));
    for expected in node.expected.iter() {
        let name = expected.name.as_ref();
        match names.find(name).map(|at| &inputs[at]) {
            Some(input) if !input.input.is_list() => {
                Check { node, info, all, spec: expected.spec, input }.run(known, findings);
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
        undeclared(node, info, input, known, findings);
    }
}

/// An input that the class does not declare.
fn undeclared<'a>(
    node: &GraphNode<'a>,
    info: &'a NodeInfo,
    input: &GraphInput<'a>,
    known: &mut Known<'a>,
    findings: &mut Findings<'_>,
) {
    let name = input.input.name.as_ref();
    let spec = known.input(info, name);
    if let Some(InputKind::Dynamic(Dynamic::Combo { options })) = spec.map(|spec| &spec.kind) {
        let available = options.iter().take(findings.options.listed).map(|(key, _)| text_of(key)).collect();
        let message = format!("{} is none of the choices", shown(input.input.raw.get()));
        let kind = Kind::NotInList { available };
        findings.suspect(node, name, Noticed::AtRunTime, kind, message);
        return;
    }
    let hidden = spec.is_some();
    if hidden
        || FRONTEND_EXTRAS.contains(&name)
        || known.is_part_of_dynamic(info, name)
        || known.comes_with_a_format(info, name)
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

/// One literal value and everything that is known about its input.
struct Check<'c, 'a> {
    node: &'c GraphNode<'a>,
    info: &'a NodeInfo,
    all: &'a ObjectInfo,
    spec: &'a InputSpec,
    input: &'c GraphInput<'a>,
}

impl<'a> Check<'_, 'a> {
    fn run(&self, known: &mut Known<'a>, findings: &mut Findings<'_>) {
        let raw = self.input.input.raw.get();
        // What it has in it is nobody's business here, and would take a hundred times its room.
        let opaque = raw.starts_with('{') && raw.len() > OPAQUE;
        let value = if opaque { Some(Value::Object(Map::new())) } else { self.input.input.value() };
        let Some(value) = value else { return };
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
            InputKind::Choice { options, .. } => self.choice(options, &value, known, findings),
            InputKind::Link(kind) => self.socket(kind, &raw, known, findings),
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
                false => {
                    format!("takes true or false; {:?}, like any other text, counts as true", shown(text))
                }
            };
            self.suspect(Noticed::Never, kind, message, findings);
        }
    }

    fn choice(
        &self,
        choices: &'a [Value],
        value: &Value,
        known: &mut Known<'a>,
        findings: &mut Findings<'_>,
    ) {
        if known.has_choice(choices, value) {
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
        let folder = model_folder(class, name);
        if let Value::String(asked) = value
            && (folder.is_some() || has_model_ending(asked) || known.lists_models(choices))
        {
            let available = self.nearest(asked, choices, findings);
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
        let available = match known.all_texts(choices) {
            true => self.nearest(&asked, choices, findings),
            false => choices.iter().take(findings.options.listed).map(text_of).collect(),
        };
        let message = format!(
            "{} is none of the choices: {}",
            shown(&value.to_string()),
            listed(&available, choices.len())
        );
        self.refuse(Kind::NotInList { available }, message, findings);
    }

    fn nearest(&self, asked: &str, choices: &[Value], findings: &mut Findings<'_>) -> Vec<String> {
        let limit = findings.options.listed;
        let names = choices.iter().filter_map(Value::as_str);
        match findings.may_rank(choices.len()) {
            0 => names.take(limit).map(str::to_owned).collect(),
            ranked => nearest(asked, names.take(ranked), limit),
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
    fn socket(&self, kind: &'a str, raw: &str, known: &mut Known<'a>, findings: &mut Findings<'_>) {
        if let Some(number) = Number::parse(raw) {
            self.range(number, raw, findings);
        }
        if known.takes_only_links(self.all, kind) {
            let message = format!("takes a link to {kind}, not {}; the node is likely to fail", shown(raw));
            let kind = Kind::WrongType { expected: kind.to_owned() };
            self.suspect(Noticed::AtRunTime, kind, message, findings);
        }
    }
}

/// Why numbers that are not finite must not be sent.
pub(super) const NON_FINITE_HARM: &str = "it comes back as a bare NaN or Infinity in the queue and the history, which many clients then cannot read";

/// A value for a message: not the whole novel when it is long.
pub(super) fn shown(json: &str) -> String {
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
