//! Workflows in ComfyUI's API format, kept byte for byte.
//!
//! A workflow is never taken apart and written again: seeds up to 2^64-1, numbers such as `1e-05` and the order
//! of keys reach ComfyUI exactly as they were given. [`Workflow::nodes`] reads the graph lightly on the side, and
//! [`Workflow::with_input`] replaces a single literal value in the text and leaves every other byte alone.

mod edit;
mod index;
mod limits;
mod view;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::lenient;

pub use edit::EditError;
pub use index::Index;
pub use limits::{Limit, Limits, TooLarge};
pub use view::{Input, Link, Node};
pub(crate) use view::{entries, text};

/// How deep lists and objects may be nested in a workflow. Real graphs need five levels or so, and readers on the
/// way (Python's among them) stop at some depth with an error that explains nothing.
pub const MAX_DEPTH: usize = 100;

/// A graph in API format: node id → `{class_type, inputs, _meta?}`.
///
/// Parsing only makes sure that the text is a JSON object that is meant as such a graph; whether ComfyUI would
/// take it is the question of [`guard::check`](crate::guard::check()). Cloning is cheap.
///
/// ```
/// use comfyui::workflow::Workflow;
///
/// let text = r#"{"3": {"class_type": "KSampler", "inputs": {"seed": 18446744073709551615, "cfg": 1e-05}}}"#;
/// let workflow = Workflow::parse(text)?;
/// assert_eq!(workflow.as_str(), text);
/// assert_eq!(workflow.nodes()[0].class_type().as_deref(), Some("KSampler"));
/// # Ok::<(), comfyui::workflow::WorkflowError>(())
/// ```
#[derive(Clone)]
pub struct Workflow {
    /// Always the text of a JSON object with at least one key.
    /// In its own box: it may be as long as a request, and is not copied to be shared.
    raw: Arc<Box<RawValue>>,
}

/// Why a text is not a workflow in API format.
///
/// ```
/// use comfyui::workflow::{Workflow, WorkflowError};
///
/// let saved = r#"{"last_node_id": 9, "nodes": [], "links": [], "version": 0.4}"#;
/// assert!(matches!(Workflow::parse(saved), Err(WorkflowError::UiFormat)));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkflowError {
    /// The text is not JSON; the source says where.
    #[error("the workflow is not JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    /// The text holds a bare `NaN` or `Infinity`, which Python reads and writes but JSON does not know.
    #[error("the workflow holds the bare word {word} at line {line} column {column}, which is not JSON")]
    NonFinite {
        /// `NaN`, `Infinity` or `-Infinity`.
        word: &'static str,
        /// Line of the word, counted from 1.
        line: usize,
        /// Column of the word in bytes, counted from 1.
        column: usize,
    },
    /// The text is JSON, but not an object.
    #[error("the workflow is {found}, not an object of nodes")]
    NotAnObject {
        /// What it is instead, with its article: `a list`, `a text`, …
        found: &'static str,
    },
    /// The format that ComfyUI's frontend saves (`nodes` and `links`), which its server cannot run.
    #[error(
        "the workflow is in the format that the frontend saves (nodes and links), which the server cannot run; \
         export it in API format (in the menu: Workflow, Export (API))"
    )]
    UiFormat,
    /// The graph is one level further down, as in the body of `POST /prompt`.
    #[error("the workflow is wrapped: the graph is the value under {key:?}; pass that value alone")]
    Wrapped {
        /// The key under which the graph was found.
        key: String,
    },
    /// One level further down there is a graph, but in the format that the frontend saves.
    #[error(
        "the value under {key:?} is a workflow in the format that the frontend saves (nodes and links), which the \
         server cannot run; export it in API format (in the menu: Workflow, Export (API))"
    )]
    WrappedUiFormat {
        /// The key under which the saved workflow was found.
        key: String,
    },
    /// The object has no nodes.
    #[error("the workflow has no nodes")]
    Empty,
    /// Lists and objects are nested deeper than [`MAX_DEPTH`].
    #[error("the workflow is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// It is larger than the [`Limits`] of whoever reads it.
    #[error(transparent)]
    TooLarge(Box<TooLarge>),
}

impl Workflow {
    /// Reads a workflow from its text or bytes. Space around it, and a byte order mark before it, are dropped.
    ///
    /// # Errors
    ///
    /// [`WorkflowError`] says what the text is instead; formats that are commonly mistaken for the API format are
    /// recognised by name.
    pub fn parse(json: impl AsRef<[u8]>) -> Result<Self, WorkflowError> {
        Self::parse_within(json, &Limits::NONE)
    }

    /// As [`Workflow::parse`], for a text that a stranger sent.
    ///
    /// # Errors
    ///
    /// As [`Workflow::parse`], and [`WorkflowError::TooLarge`].
    pub fn parse_within(json: impl AsRef<[u8]>, limits: &Limits) -> Result<Self, WorkflowError> {
        let json = json.as_ref();
        let json = json.strip_prefix(b"\xef\xbb\xbf").unwrap_or(json);
        match serde_json::from_slice::<Box<RawValue>>(json) {
            Ok(raw) => Self::from_raw_within(raw, limits),
            Err(error) => Err(non_finite(json).unwrap_or(WorkflowError::NotJson(error))),
        }
    }

    /// Takes a piece of JSON that was already found to be valid, such as the `prompt` of a request.
    ///
    /// # Errors
    ///
    /// As [`Workflow::parse`], without [`WorkflowError::NotJson`] for its syntax.
    pub fn from_raw(raw: Box<RawValue>) -> Result<Self, WorkflowError> {
        Self::from_raw_within(raw, &Limits::NONE)
    }

    /// As [`Workflow::from_raw`], for a text that a stranger sent. The bounds are looked at before anything is built.
    ///
    /// # Errors
    ///
    /// As [`Workflow::from_raw`], and [`WorkflowError::TooLarge`].
    pub fn from_raw_within(raw: Box<RawValue>, limits: &Limits) -> Result<Self, WorkflowError> {
        limits::scan(raw.get(), limits).map_err(|stopped| match stopped {
            limits::Stopped::TooDeep => WorkflowError::TooDeep,
            limits::Stopped::TooLarge(error) => WorkflowError::TooLarge(error),
        })?;
        let Some(found) = view::entries(raw.get()).map_err(WorkflowError::NotJson)? else {
            return Err(WorkflowError::NotAnObject { found: view::name_of_type(raw.get()) });
        };
        if found.is_empty() {
            return Err(WorkflowError::Empty);
        }
        match view::recognise(&found, limits) {
            Some(mistaken) => Err(mistaken),
            None => Ok(Self { raw: Arc::new(raw) }),
        }
    }

    /// The very text that was parsed.
    pub fn as_str(&self) -> &str {
        self.raw.get()
    }

    /// The text again, without a copy if nobody shares it.
    ///
    /// ```
    /// let workflow = comfyui::Workflow::parse(r#"{"1": {"class_type": "A", "inputs": {}}}"#)?;
    /// assert_eq!(workflow.clone().into_raw().get(), workflow.as_str());
    /// # Ok::<(), comfyui::workflow::WorkflowError>(())
    /// ```
    #[must_use]
    pub fn into_raw(self) -> Box<RawValue> {
        Arc::unwrap_or_clone(self.raw)
    }

    /// The text as raw JSON, to embed it into a larger document unchanged.
    pub fn as_raw(&self) -> &RawValue {
        &self.raw
    }

    /// All nodes in the order of the text, doubled ids included. Reads the text anew at each call.
    ///
    /// ```
    /// use comfyui::workflow::Workflow;
    ///
    /// let workflow = Workflow::parse(
    ///     r#"{"1": {"class_type": "LoadImage", "inputs": {"image": "fox.png"}, "_meta": {"title": "The fox"}},
    ///         "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}}"#,
    /// )?;
    /// let nodes = workflow.nodes();
    /// assert_eq!(nodes[0].title().as_deref(), Some("The fox"));
    /// let link = nodes[1].input("images").and_then(|input| input.link()).unwrap();
    /// assert_eq!((link.node.as_ref(), link.slot), ("1", 0));
    /// # Ok::<(), comfyui::workflow::WorkflowError>(())
    /// ```
    pub fn nodes(&self) -> Vec<Node<'_>> {
        // The text was read this way when the workflow was made, so there is nothing left to fail.
        let found = view::entries(self.as_str()).ok().flatten().unwrap_or_default();
        found.into_iter().map(|(id, raw)| Node::new(id, raw)).collect()
    }

    /// The nodes by their ids. Reads the text once, however many of them are asked for.
    pub fn index(&self) -> Index<'_> {
        Index::new(self.nodes())
    }

    /// The node with this id; of several the last, because that is the one ComfyUI sees. Reads the text anew at each
    /// call: [`Workflow::index`] is for those who ask more than once.
    pub fn node(&self, id: &str) -> Option<Node<'_>> {
        self.nodes().into_iter().rfind(|node| node.id() == id)
    }
}

impl AsRef<str> for Workflow {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for Workflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Workflow").field(&self.as_str()).finish()
    }
}

impl fmt::Display for Workflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Two workflows are equal when their texts are.
impl PartialEq for Workflow {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Workflow {}

impl FromStr for Workflow {
    type Err = WorkflowError;

    fn from_str(json: &str) -> Result<Self, Self::Err> {
        Self::parse(json)
    }
}

impl Serialize for Workflow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_raw().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Workflow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_raw(Box::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The error for a text that would be JSON but for a bare `NaN` or `Infinity`.
fn non_finite(json: &[u8]) -> Option<WorkflowError> {
    let (at, word) = lenient::non_finite_words(json).next()?;
    lenient::from_slice::<serde::de::IgnoredAny>(json).ok()?;
    let before = &json[..at];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    Some(WorkflowError::NonFinite {
        word,
        line: before.iter().filter(|&&byte| byte == b'\n').count() + 1,
        column: at - line_start + 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_survives_byte_for_byte() {
        let text = "{ \"9\" : {\"inputs\":{\"z\": 18446744073709551615, \"a\": 1e-05,\"t\": \"\\u00e9 \\/\"},\n\
                    \t\"class_type\":\"A\"},\"1\":{}}";
        let workflow = Workflow::parse(format!("\u{feff}  {text}\n")).unwrap();
        assert_eq!(workflow.as_str(), text);
        #[derive(Serialize, Deserialize)]
        struct Body {
            prompt: Workflow,
        }
        let body = serde_json::to_string(&Body { prompt: workflow.clone() }).unwrap();
        assert_eq!(body, format!("{{\"prompt\":{text}}}"));
        assert_eq!(serde_json::from_str::<Body>(&body).unwrap().prompt, workflow);
    }

    fn refusal(text: &str) -> String {
        Workflow::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_a_workflow_is_named() {
        assert!(refusal("{\"1\": }").ends_with("at line 1 column 7"), "{}", refusal("{\"1\": }"));
        assert!(refusal("[1]").contains("is a list"));
        assert!(refusal("\"{}\"").contains("is a text"));
        assert!(refusal(" {} ").contains("no nodes"));
        assert!(refusal(r#"{"id": "x", "nodes": [], "links": []}"#).contains("frontend saves"));
        let graph = r#"{"1": {"class_type": "A", "inputs": {}}}"#;
        assert!(refusal(&format!(r#"{{"prompt": {graph}, "client_id": "x"}}"#)).contains("\"prompt\""));
        assert!(refusal(r#"{"client_id": "x", "prompt": {}}"#).contains("\"prompt\""));
        assert!(
            refusal(&format!(r#"{{"workflow": {{"nodes": []}}, "output": {graph}}}"#)).contains("\"output\"")
        );
        assert!(matches!(
            Workflow::parse(r#"{"workflow": {"nodes": [], "links": []}}"#),
            Err(WorkflowError::WrappedUiFormat { key }) if key == "workflow"
        ));
    }

    #[test]
    fn a_node_may_have_any_id() {
        for id in ["prompt", "workflow", "nodes", "output"] {
            let text = format!(r#"{{"{id}": {{"class_type": "A", "inputs": {{"nodes": [[]]}}}}}}"#);
            assert_eq!(Workflow::parse(&text).unwrap().nodes()[0].id(), id);
        }
    }

    #[test]
    fn bare_nan_is_reported_with_its_place() {
        match Workflow::parse("{\"1\": {\"inputs\":\n {\"x\": \"NaN\", \"y\": -Infinity}}}") {
            Err(WorkflowError::NonFinite { word: "-Infinity", line: 2, column: 20 }) => {}
            other => panic!("{other:?}"),
        }
        assert!(matches!(Workflow::parse("{\"1\": NaN"), Err(WorkflowError::NotJson(_))));
    }

    #[test]
    fn deep_nesting_is_refused_without_recursion() {
        let deep = |levels: usize| format!("{{\"1\": {}{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(Workflow::parse(deep(MAX_DEPTH - 1)).is_ok());
        assert!(matches!(Workflow::parse(deep(MAX_DEPTH)), Err(WorkflowError::TooDeep)));
        assert!(matches!(Workflow::parse(deep(1_000_000)), Err(WorkflowError::TooDeep)));
        let text = format!("{{\"1\": \"{}\"}}", "[".repeat(500));
        assert!(Workflow::parse(text).is_ok());
    }
}
