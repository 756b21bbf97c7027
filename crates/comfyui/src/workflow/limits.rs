//! How large a workflow may be, and the one pass over its text that finds out.

use std::fmt;

use crate::lenient;

use super::MAX_DEPTH;

/// How large a workflow may be. Readers that take workflows from strangers choose; [`Workflow::parse`] has no such bounds.
///
/// ```
/// use comfyui::workflow::{Limits, Workflow, WorkflowError};
///
/// let text = r#"{"1": {"class_type": "A", "inputs": {}}, "2": {"class_type": "A", "inputs": {}}}"#;
/// let raw = serde_json::value::RawValue::from_string(text.to_owned())?;
/// let limits = Limits { nodes: 1, ..Limits::default() };
/// let Err(WorkflowError::TooLarge(error)) = Workflow::from_raw_within(raw, &limits) else { panic!() };
/// assert_eq!(error.to_string(), "the workflow has more than 1 node");
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// [`Workflow::parse`]: super::Workflow::parse
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Nodes in the graph.
    pub nodes: usize,
    /// Inputs of one node.
    pub inputs: usize,
    /// Bytes in the id of a node, the name of a class or the name of an input, as they are written.
    pub name_length: usize,
}

impl Limits {
    /// No bounds at all.
    pub const NONE: Self = Self { nodes: usize::MAX, inputs: usize::MAX, name_length: usize::MAX };
}

/// Far more than any graph that a person has made.
impl Default for Limits {
    fn default() -> Self {
        Self { nodes: 20_000, inputs: 4_096, name_length: 1_024 }
    }
}

/// Which of the [`Limits`] a workflow exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// [`Limits::nodes`]
    Nodes,
    /// [`Limits::inputs`]
    Inputs,
    /// [`Limits::name_length`]
    NameLength,
}

/// A workflow is larger than it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooLarge {
    /// Which limit it exceeds.
    pub limit: Limit,
    /// That limit.
    pub most: usize,
    /// The node at fault, cut short if its id is the problem.
    pub node: Option<String>,
    /// The beginning of the name that is too long.
    pub name: Option<String>,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.most;
        let node = self.node.as_deref().unwrap_or_default();
        let s = if most == 1 { "" } else { "s" };
        match self.limit {
            Limit::Nodes => write!(f, "the workflow has more than {most} node{s}"),
            Limit::Inputs => write!(f, "node {node} has more than {most} input{s}"),
            Limit::NameLength => {
                let name = self.name.as_deref().unwrap_or_default();
                write!(f, "node {node}: the name {name:?} is longer than {most} byte{s}")
            }
        }
    }
}

impl std::error::Error for TooLarge {}

/// Why a scan stopped.
#[derive(Debug)]
pub(super) enum Stopped {
    TooDeep,
    TooLarge(Box<TooLarge>),
}

/// One pass over valid JSON: how deep it is nested, and how much of everything there is. It needs no memory, so that it
/// can be made before anything is built from the text.
pub(super) fn scan(json: &str, limits: &Limits) -> Result<(), Stopped> {
    let bytes = json.as_bytes();
    // The graph is at depth 1, a node at 2, its inputs at 3. Every colon outside a string stands for one member.
    let mut members = [0_usize; 4];
    let mut depth = 0;
    let mut last_text = 0..0;
    let mut node = 0..0;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let end = lenient::end_of_string(bytes, at);
                last_text = at + 1..end.saturating_sub(1).max(at + 1);
                at = end;
                continue;
            }
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(Stopped::TooDeep);
                }
                if let Some(count) = members.get_mut(depth) {
                    *count = 0;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b':' if depth < members.len() => {
                members[depth] += 1;
                if depth == 1 {
                    node = last_text.clone();
                }
                let found = (depth, members[depth], last_text.len());
                if let Some(limit) = exceeded(found, limits) {
                    return Err(Stopped::TooLarge(Box::new(too_large(
                        limit, limits, json, &node, &last_text,
                    ))));
                }
            }
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

fn exceeded((depth, members, name): (usize, usize, usize), limits: &Limits) -> Option<Limit> {
    match depth {
        1 if members > limits.nodes => Some(Limit::Nodes),
        2 | 3 if members > limits.inputs => Some(Limit::Inputs),
        1 | 3 if name > limits.name_length => Some(Limit::NameLength),
        _ => None,
    }
}

fn too_large(
    limit: Limit,
    limits: &Limits,
    json: &str,
    node: &std::ops::Range<usize>,
    name: &std::ops::Range<usize>,
) -> TooLarge {
    let cut = |range: &std::ops::Range<usize>| beginning(json.get(range.clone()).unwrap_or_default());
    match limit {
        Limit::Nodes => TooLarge { limit, most: limits.nodes, node: None, name: None },
        Limit::Inputs => TooLarge { limit, most: limits.inputs, node: Some(cut(node)), name: None },
        Limit::NameLength => long_name(cut(node), &cut(name), limits),
    }
}

/// The finding for a name that is too long.
pub(super) fn long_name(node: String, name: &str, limits: &Limits) -> TooLarge {
    let name = Some(beginning(name));
    TooLarge { limit: Limit::NameLength, most: limits.name_length, node: Some(node), name }
}

/// As much of a name as a message has room for.
pub(super) fn beginning(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
