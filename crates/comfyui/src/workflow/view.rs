//! A light, borrowed reading of a workflow's text: nodes, inputs and links, doubled keys kept.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::WorkflowError;
use super::limits::{self, Limits};

/// One `key: value` of a JSON object, borrowed from its text.
pub(crate) type Entry<'a> = (Cow<'a, str>, &'a RawValue);

/// One node of a [`Workflow`](super::Workflow), as it stands in the text, whether ComfyUI would take it or not.
///
/// ```
/// use comfyui::workflow::Workflow;
///
/// let workflow = Workflow::parse(r#"{"7": {"class_type": "CLIPTextEncode", "inputs": {"text": "a fox"}}}"#)?;
/// let node = workflow.node("7").unwrap();
/// assert_eq!(node.class_type().as_deref(), Some("CLIPTextEncode"));
/// assert_eq!(node.input("text").unwrap().raw.get(), r#""a fox""#);
/// # Ok::<(), comfyui::workflow::WorkflowError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Node<'a> {
    id: Cow<'a, str>,
    raw: &'a RawValue,
    /// None when the node is not an object.
    fields: Option<Vec<Entry<'a>>>,
}

impl<'a> Node<'a> {
    pub(super) fn new(id: Cow<'a, str>, raw: &'a RawValue) -> Self {
        // Keys with broken escapes make a node unreadable, which is as bad as not being an object.
        Self { id, raw, fields: entries(raw.get()).ok().flatten() }
    }

    /// The id of the node: its key in the graph.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The whole node as it stands in the text.
    pub fn raw(&self) -> &'a RawValue {
        self.raw
    }

    /// Whether the node is a JSON object at all.
    pub fn is_object(&self) -> bool {
        self.fields.is_some()
    }

    /// One field of the node; of a doubled one the last, as Python reads it.
    pub fn field(&self, name: &str) -> Option<&'a RawValue> {
        let fields = self.fields.as_deref()?;
        fields.iter().rfind(|(key, _)| key == name).map(|(_, value)| *value)
    }

    /// The class of the node, if it has one and that is a text.
    pub fn class_type(&self) -> Option<Cow<'a, str>> {
        text(self.field("class_type")?)
    }

    /// The title that the user gave the node (`_meta.title`).
    pub fn title(&self) -> Option<Cow<'a, str>> {
        let meta = entries(self.field("_meta")?.get()).ok().flatten()?;
        let (_, title) = meta.into_iter().rfind(|(key, _)| key == "title")?;
        text(title)
    }

    /// The inputs in the order of the text, doubled names included; None when `inputs` is missing or no object.
    pub fn inputs(&self) -> Option<Vec<Input<'a>>> {
        let inputs = entries(self.field("inputs")?.get()).ok().flatten()?;
        Some(inputs.into_iter().map(|(name, raw)| Input { name, raw }).collect())
    }

    /// One input; of a doubled one the last, as Python reads it.
    pub fn input(&self, name: &str) -> Option<Input<'a>> {
        self.inputs()?.into_iter().rfind(|input| input.name == name)
    }
}

/// One input of a node: a literal value or a link to an output of another node.
///
/// ```
/// use comfyui::workflow::Workflow;
///
/// let workflow = Workflow::parse(r#"{"2": {"inputs": {"images": ["1", 0], "quality": 90}}}"#)?;
/// let inputs = workflow.nodes()[0].inputs().unwrap();
/// assert!(inputs[0].is_list() && inputs[0].link().is_some());
/// assert!(inputs[1].link().is_none());
/// # Ok::<(), comfyui::workflow::WorkflowError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Input<'a> {
    /// The name of the input.
    pub name: Cow<'a, str>,
    /// Its value as it stands in the text.
    pub raw: &'a RawValue,
}

impl<'a> Input<'a> {
    /// Whether the value is a list. ComfyUI takes every list for a link, so a list is never a literal value (a
    /// value that is a list has to be wrapped as `{"__value__": […]}`).
    pub fn is_list(&self) -> bool {
        self.raw.get().starts_with('[')
    }

    /// The link, if the value is a well-formed one: `["id of a node", number of its output]`.
    pub fn link(&self) -> Option<Link<'a>> {
        if !self.is_list() {
            return None;
        }
        let (node, slot) = serde_json::from_str::<(&'a RawValue, &'a RawValue)>(self.raw.get()).ok()?;
        Some(Link { node: text(node)?, slot: slot.get().parse().ok()? })
    }

    /// The node that a list could mean, also one that is no well-formed link: Python takes `false` for the number 0.
    pub fn source(&self) -> Option<Cow<'a, str>> {
        if !self.is_list() {
            return None;
        }
        let (node, _) = serde_json::from_str::<(&'a RawValue, &'a RawValue)>(self.raw.get()).ok()?;
        text(node)
    }

    /// The text, if the value is one.
    pub fn text(&self) -> Option<Cow<'a, str>> {
        text(self.raw)
    }

    /// The value, read; None when it cannot be (a text with broken escapes).
    ///
    /// Numbers beyond 64 bits lose digits here; [`Input::raw`] has them all.
    pub fn value(&self) -> Option<Value> {
        serde_json::from_str(self.raw.get()).ok()
    }
}

/// A link to one output of another node.
///
/// ```
/// use comfyui::workflow::Workflow;
///
/// let workflow = Workflow::parse(r#"{"2": {"inputs": {"images": ["1", 0]}}}"#)?;
/// let link = workflow.node("2").unwrap().input("images").unwrap().link().unwrap();
/// assert_eq!((link.node.as_ref(), link.slot), ("1", 0));
/// # Ok::<(), comfyui::workflow::WorkflowError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link<'a> {
    /// The id of the node linked to.
    pub node: Cow<'a, str>,
    /// The index of its output, from 0. Python counts a negative one from the end.
    pub slot: i64,
}

/// The pairs of a JSON object in order, doubled keys kept; None when the text is another kind of JSON.
pub(crate) fn entries(json: &str) -> Result<Option<Vec<Entry<'_>>>, serde_json::Error> {
    if !json.trim_start().starts_with('{') {
        return Ok(None);
    }
    serde_json::from_str::<Entries<'_>>(json).map(|entries| Some(entries.0))
}

/// A text value; None when the value is of another kind or has broken escapes.
pub(crate) fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(raw.get()).ok().map(|text| text.0)
}

/// What kind of JSON a valid text is, with its article.
pub(crate) fn name_of_type(json: &str) -> &'static str {
    match json.trim_start().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b'"') => "a text",
        Some(b't' | b'f') => "a truth value",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// The error for an object that is commonly mistaken for a graph in API format.
pub(super) fn recognise(found: &[Entry<'_>], limits: &Limits) -> Option<WorkflowError> {
    if is_ui_format(found) {
        return Some(WorkflowError::UiFormat);
    }
    fn inner(raw: &RawValue) -> Option<Vec<Entry<'_>>> {
        entries(raw.get()).ok().flatten()
    }
    let has = |fields: &[Entry<'_>], name: &str| fields.iter().any(|(key, _)| key == name);
    let mut saved = None;
    for (key, raw) in found {
        let Some(fields) = inner(raw) else { continue };
        if let Some((_, class)) = fields.iter().rfind(|(key, _)| key == "class_type") {
            // The quotes around it do not count.
            let length = class.get().len().saturating_sub(2);
            if class.get().starts_with('"') && length > limits.name_length {
                let node = limits::beginning(key);
                let error = limits::long_name(node, class.get().trim_matches('"'), limits);
                return Some(WorkflowError::TooLarge(Box::new(error)));
            }
            continue;
        }
        let holds_nodes =
            fields.iter().any(|(_, raw)| inner(raw).is_some_and(|node| has(&node, "class_type")));
        if holds_nodes || (key == "prompt" && fields.is_empty()) {
            return Some(WorkflowError::Wrapped { key: key.to_string() });
        }
        if is_ui_format(&fields) && saved.is_none() {
            saved = Some(WorkflowError::WrappedUiFormat { key: key.to_string() });
        }
    }
    saved
}

/// A node is never a list, so a list under `nodes` gives the saved format away.
fn is_ui_format(fields: &[Entry<'_>]) -> bool {
    fields.iter().any(|(key, raw)| key == "nodes" && raw.get().starts_with('['))
}

/// Serde's own maps drop doubled keys, this one keeps them.
struct Entries<'a>(Vec<Entry<'a>>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Text(key), value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
                    entries.push((key, value));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// A text that is borrowed where it has no escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

#[cfg(test)]
mod tests {
    use crate::workflow::Workflow;

    #[test]
    fn doubled_keys_are_kept_and_the_last_one_counts() {
        let workflow = Workflow::parse(
            r#"{"1": {"class_type": "A", "inputs": {}}, "\u0031": {"class_type": "B", "inputs": {"x": 1, "x": 2}}}"#,
        )
        .unwrap();
        let nodes = workflow.nodes();
        assert_eq!(nodes.iter().map(|node| node.id()).collect::<Vec<_>>(), ["1", "1"]);
        let node = workflow.node("1").unwrap();
        assert_eq!(node.class_type().as_deref(), Some("B"));
        assert_eq!(node.inputs().unwrap().len(), 2);
        assert_eq!(node.input("x").unwrap().raw.get(), "2");
    }

    #[test]
    fn only_well_formed_links_are_links() {
        let link = |text: &str| {
            let workflow = Workflow::parse(format!(r#"{{"1": {{"inputs": {{"x": {text}}}}}}}"#)).unwrap();
            let input = workflow.node("1").unwrap().input("x").unwrap();
            input.link().map(|link| (link.node.into_owned(), link.slot))
        };
        assert_eq!(link(r#"["a\"b", 3 ]"#), Some(("a\"b".to_owned(), 3)));
        for bad in
            [r#"["1", 0, 0]"#, "[1, 0]", r#"["1"]"#, r#"["1", 0.5]"#, r#"["1", "0"]"#, "[]", "\"1\"", "{}"]
        {
            assert_eq!(link(bad), None, "{bad}");
        }
    }

    #[test]
    fn odd_nodes_do_not_stop_the_others() {
        let workflow = Workflow::parse(
            r#"{"1": 5, "2": {"class_type": 7, "inputs": null}, "3": {"inputs": {"\ud800": 1}}}"#,
        )
        .unwrap();
        let nodes = workflow.nodes();
        assert!(!nodes[0].is_object());
        assert_eq!((nodes[1].class_type(), nodes[1].inputs().is_none()), (None, true));
        assert!(nodes[2].is_object() && nodes[2].inputs().is_none());
    }
}
