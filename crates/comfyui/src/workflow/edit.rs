//! Replacing a single literal value in the text of a workflow.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::lenient;

use super::{Index, Input, MAX_DEPTH, Workflow, WorkflowError};

/// Why an input was not replaced.
///
/// ```
/// use comfyui::workflow::{EditError, Workflow};
///
/// let workflow = Workflow::parse(r#"{"2": {"inputs": {"images": ["1", 0]}}}"#)?;
/// assert!(matches!(workflow.with_input("2", "images", "fox.png"), Err(EditError::Linked { .. })));
/// # Ok::<(), comfyui::workflow::WorkflowError>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The graph has no such node, or it is no object.
    #[error("node {node}: not in the workflow")]
    NoSuchNode {
        /// The id that was asked for.
        node: String,
    },
    /// The node has no such input.
    #[error("node {node} input {input}: the node has no such input in the workflow")]
    NoSuchInput {
        /// The id of the node.
        node: String,
        /// The name that was asked for.
        input: String,
    },
    /// The input is linked to another node, so it has no literal value to replace.
    #[error("node {node} input {input}: is linked to another node")]
    Linked {
        /// The id of the node.
        node: String,
        /// The name of the input.
        input: String,
    },
    /// The new value is a list, which ComfyUI would take for a link.
    #[error("node {node} input {input}: a list would be read as a link; wrap it as {{\"__value__\": [...]}}")]
    ListValue {
        /// The id of the node.
        node: String,
        /// The name of the input.
        input: String,
    },
    /// The new value cannot be written as JSON.
    #[error("node {node} input {input}: the new value cannot be written as JSON")]
    Value {
        /// The id of the node.
        node: String,
        /// The name of the input.
        input: String,
        /// What the writer said.
        source: serde_json::Error,
    },
    /// The new value is nested too deeply.
    #[error("node {node} input {input}: the new value is nested deeper than {MAX_DEPTH} levels allow")]
    TooDeep {
        /// The id of the node.
        node: String,
        /// The name of the input.
        input: String,
    },
}

impl Workflow {
    /// Replaces the literal value of one input and leaves every other byte of the text alone.
    ///
    /// Only an existing literal is replaced: an absent or linked input is an error that the caller can act on. Of
    /// doubled ids or names the last is edited, because that is the one ComfyUI sees. The value may be anything
    /// that serde can write; a [`RawValue`] goes in byte for byte.
    ///
    /// ```
    /// use comfyui::workflow::Workflow;
    ///
    /// let workflow = Workflow::parse(r#"{"6": {"inputs": {"text":  "a dog", "seed": 1e-05}}}"#)?;
    /// let edited = workflow.with_input("6", "text", "a \"quick\" fox")?;
    /// assert_eq!(edited.as_str(), r#"{"6": {"inputs": {"text":  "a \"quick\" fox", "seed": 1e-05}}}"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`EditError`] says what stands in the way; the workflow itself is never changed.
    pub fn with_input<V>(&self, node: &str, input: &str, value: &V) -> Result<Self, EditError>
    where
        V: Serialize + ?Sized,
    {
        let new = serde_json::value::to_raw_value(value).map_err(|source| EditError::Value {
            node: node.to_owned(),
            input: input.to_owned(),
            source,
        })?;
        self.with_inputs([(node, input, new)])
    }

    /// Replaces the literal values of several inputs, as [`Workflow::with_input`] does for one. The text is read and
    /// written once, however many they are; of two values for the same input the later counts.
    ///
    /// ```
    /// use comfyui::workflow::Workflow;
    /// use serde_json::value::to_raw_value;
    ///
    /// let workflow = Workflow::parse(r#"{"1": {"inputs": {"a": 1}}, "2": {"inputs": {"b": "x"}}}"#)?;
    /// let edited = workflow.with_inputs([("2", "b", to_raw_value("y")?), ("1", "a", to_raw_value(&2)?)])?;
    /// assert_eq!(edited.as_str(), r#"{"1": {"inputs": {"a": 2}}, "2": {"inputs": {"b": "y"}}}"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`EditError`] for the first that cannot be replaced; the workflow itself is never changed.
    pub fn with_inputs<'e>(
        &self,
        edits: impl IntoIterator<Item = (&'e str, &'e str, Box<RawValue>)>,
    ) -> Result<Self, EditError> {
        let text = self.as_str();
        let index = self.index();
        let mut pieces: BTreeMap<usize, (usize, Box<RawValue>)> = BTreeMap::new();
        let mut last = (String::new(), String::new());
        for (node, input, new) in edits {
            let names = || (node.to_owned(), input.to_owned());
            let old = index.replaceable(node, input)?;
            if new.get().starts_with('[') {
                let (node, input) = names();
                return Err(EditError::ListValue { node, input });
            }
            if depth(new.get()) > MAX_DEPTH - INSIDE {
                let (node, input) = names();
                return Err(EditError::TooDeep { node, input });
            }
            // `old` is a slice of the text, so the distance of their addresses is its offset.
            let start = old.raw.get().as_ptr() as usize - text.as_ptr() as usize;
            pieces.insert(start, (start + old.raw.get().len(), new));
            last = names();
        }
        if pieces.is_empty() {
            return Ok(self.clone());
        }
        let mut edited = String::with_capacity(text.len() + pieces.len() * 64);
        let mut copied = 0;
        for (start, (end, new)) in &pieces {
            edited.push_str(&text[copied..*start]);
            edited.push_str(new.get());
            copied = *end;
        }
        edited.push_str(&text[copied..]);
        let failed = |source| EditError::Value { node: last.0.clone(), input: last.1.clone(), source };
        match RawValue::from_string(edited).map_err(WorkflowError::NotJson).and_then(Self::from_raw) {
            Ok(edited) => Ok(edited),
            Err(WorkflowError::NotJson(source)) => Err(failed(source)),
            // The graph was recognised before, and a value inside a node changes nothing about that.
            Err(_) => Err(EditError::TooDeep { node: last.0, input: last.1 }),
        }
    }
}

impl<'a> Index<'a> {
    /// The literal value of an input, which can be replaced.
    ///
    /// # Errors
    ///
    /// [`EditError`] when there is none: no such node, no such input, or a link.
    pub fn replaceable(&self, node: &str, input: &str) -> Result<Input<'a>, EditError> {
        let names = || (node.to_owned(), input.to_owned());
        if !self.node(node).is_some_and(|found| found.is_object()) {
            return Err(EditError::NoSuchNode { node: node.to_owned() });
        }
        let Some(old) = self.input(node, input) else {
            let (node, input) = names();
            return Err(EditError::NoSuchInput { node, input });
        };
        if old.is_list() {
            let (node, input) = names();
            return Err(EditError::Linked { node, input });
        }
        Ok(old)
    }
}

/// A value of an input stands inside the graph, its node and the inputs.
const INSIDE: usize = 3;

/// How deep the lists and objects of a JSON text are nested.
fn depth(json: &str) -> usize {
    let bytes = json.as_bytes();
    let (mut deepest, mut current, mut at) = (0_usize, 0_usize, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = lenient::end_of_string(bytes, at);
                continue;
            }
            b'[' | b'{' => {
                current += 1;
                deepest = deepest.max(current);
            }
            b']' | b'}' => current = current.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    deepest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const TEXT: &str = "{ \"1\": {\"class_type\":\"A\", \"inputs\":{ \"seed\": 18446744073709551615 ,\n\t\"cfg\":1e-05, \
                        \"image\" :[\"2\",0], \"text\":\"\\u00e9\" } },\"2\":{\"inputs\":{\"text\":\"\\u00e9\"}}}";

    #[test]
    fn one_value_changes_and_nothing_else() {
        let workflow = Workflow::parse(TEXT).unwrap();
        let edited = workflow.with_input("2", "text", &json!({"__value__": [1]})).unwrap();
        assert_eq!(edited.as_str(), TEXT.replace("{\"text\":\"\\u00e9\"}", "{\"text\":{\"__value__\":[1]}}"));
        let raw = RawValue::from_string("1.50E+1".to_owned()).unwrap();
        let edited = workflow.with_input("1", "seed", &raw).unwrap();
        assert_eq!(edited.as_str(), TEXT.replace("18446744073709551615", "1.50E+1"));
        let edited = workflow.with_input("1", "cfg", &u64::MAX).unwrap();
        assert_eq!(edited.as_str(), TEXT.replace("1e-05", "18446744073709551615"));
    }

    #[test]
    fn what_cannot_be_replaced_is_an_error_to_act_on() {
        let workflow =
            Workflow::parse(r#"{"1": {"inputs": {"a": 1, "l": ["2", 0], "odd": [1, 2, 3]}}, "2": 5}"#)
                .unwrap();
        let error = |node, input, value: Value| workflow.with_input(node, input, &value).unwrap_err();
        assert!(matches!(error("9", "a", json!(1)), EditError::NoSuchNode { .. }));
        assert!(matches!(error("2", "a", json!(1)), EditError::NoSuchNode { .. }));
        assert!(matches!(error("1", "b", json!(1)), EditError::NoSuchInput { .. }));
        assert!(matches!(error("1", "l", json!(1)), EditError::Linked { .. }));
        assert!(matches!(error("1", "odd", json!(1)), EditError::Linked { .. }));
        assert!(matches!(error("1", "a", json!([1])), EditError::ListValue { .. }));
        let deep = (0..99).fold(json!({}), |inner, _| json!({"x": inner}));
        assert!(matches!(error("1", "a", deep), EditError::TooDeep { .. }));
    }

    #[test]
    fn of_doubled_names_the_last_is_edited() {
        let workflow =
            Workflow::parse(r#"{"1": {"inputs": {"a": 1}}, "1": {"inputs": {"a": 1, "a": 1}}}"#).unwrap();
        let edited = workflow.with_input("1", "a", &2).unwrap();
        assert_eq!(edited.as_str(), r#"{"1": {"inputs": {"a": 1}}, "1": {"inputs": {"a": 1, "a": 2}}}"#);
    }

    proptest! {
        #[test]
        fn any_text_goes_in_and_comes_out(text in ".*", key in ".*") {
            let graph = json!({"1": {"inputs": {"before": "x", key.as_str(): 0, "after": [["y"]]}}});
            let workflow = Workflow::parse(graph.to_string()).unwrap();
            match workflow.with_input("1", &key, &text) {
                Ok(edited) => {
                    let read: Value = serde_json::from_str(edited.as_str()).unwrap();
                    let mut expected = graph.clone();
                    expected["1"]["inputs"][key.as_str()] = json!(text);
                    prop_assert_eq!(read, expected);
                }
                Err(error) => prop_assert_eq!((key.as_str(), error.to_string().contains("linked")), ("after", true)),
            }
        }
    }
}
