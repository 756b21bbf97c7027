//! A workflow read once, for callers that ask for many of its nodes.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use serde_json::value::RawValue;

use super::view::{Input, Node};

/// Inputs by name; of doubled ones the last, as Python reads them.
type Inputs<'a> = HashMap<Cow<'a, str>, &'a RawValue>;

/// The nodes of a [`Workflow`](super::Workflow) by their ids, of doubled ones the last.
///
/// [`Workflow::node`](super::Workflow::node) reads the whole text for one answer. This reads it once, and the inputs of a
/// node once when they are first asked for.
///
/// ```
/// use comfyui::workflow::Workflow;
///
/// let workflow = Workflow::parse(r#"{"a.b": {"inputs": {"c": 1, "c": 2}}}"#)?;
/// let index = workflow.index();
/// assert_eq!(index.input("a.b", "c").unwrap().raw.get(), "2");
/// assert_eq!(index.places("a.b.c").collect::<Vec<_>>(), [("a.b", "c")]);
/// # Ok::<(), comfyui::workflow::WorkflowError>(())
/// ```
#[derive(Debug)]
pub struct Index<'a> {
    nodes: Vec<Node<'a>>,
    inputs: Vec<OnceCell<Option<Inputs<'a>>>>,
    hashing: RandomState,
    /// The last node with an id of this hash.
    last: HashMap<u64, usize>,
    /// For a node, the one before it with the same hash.
    before: Vec<Option<usize>>,
}

impl<'a> Index<'a> {
    pub(super) fn new(nodes: Vec<Node<'a>>) -> Self {
        let hashing = RandomState::new();
        let mut last = HashMap::with_capacity(nodes.len());
        let mut before = Vec::with_capacity(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            before.push(last.insert(hash(&hashing, node.id()), at));
        }
        let inputs = nodes.iter().map(|_| OnceCell::new()).collect();
        Self { nodes, inputs, hashing, last, before }
    }

    /// All nodes in the order of the text, doubled ids included.
    pub fn nodes(&self) -> &[Node<'a>] {
        &self.nodes
    }

    /// Where in [`Index::nodes`] the node with this id is.
    pub fn position(&self, id: &str) -> Option<usize> {
        self.find(hash(&self.hashing, id), id)
    }

    /// The node with this id.
    pub fn node(&self, id: &str) -> Option<&Node<'a>> {
        self.position(id).map(|at| &self.nodes[at])
    }

    /// One input of the node with this id.
    pub fn input(&self, id: &str, name: &str) -> Option<Input<'a>> {
        let at = self.position(id)?;
        let inputs = self.inputs[at].get_or_init(|| {
            let inputs = self.nodes[at].inputs()?;
            Some(inputs.into_iter().map(|input| (input.name, input.raw)).collect())
        });
        let (name, raw) = inputs.as_ref()?.get_key_value(name)?;
        Some(Input { name: name.clone(), raw })
    }

    /// Every way to read `node.input` so that the first part is a node of the graph, shortest id first. Ids and names may
    /// have dots of their own.
    pub fn places<'p>(&self, place: &'p str) -> impl Iterator<Item = (&'p str, &'p str)> {
        // The hash grows with the text, so that a name of nothing but dots is read once and not once for every dot.
        let mut hasher = self.hashing.build_hasher();
        let mut read = 0;
        place.match_indices('.').filter_map(move |(dot, _)| {
            hasher.write(&place.as_bytes()[read..dot]);
            let (id, name) = (&place[..dot], &place[dot + 1..]);
            let found = self.find(finished(&hasher), id);
            hasher.write(b".");
            read = dot + 1;
            found.map(|_| (id, name))
        })
    }

    fn find(&self, hash: u64, id: &str) -> Option<usize> {
        let mut next = self.last.get(&hash).copied();
        while let Some(at) = next {
            if self.nodes[at].id() == id {
                return Some(at);
            }
            next = self.before[at];
        }
        None
    }
}

/// The hash of an id, put together in the same pieces as [`Index::places`] does it.
fn hash(hashing: &RandomState, id: &str) -> u64 {
    let mut hasher = hashing.build_hasher();
    for (n, part) in id.split('.').enumerate() {
        if n > 0 {
            hasher.write(b".");
        }
        hasher.write(part.as_bytes());
    }
    finished(&hasher)
}

fn finished(hasher: &std::hash::DefaultHasher) -> u64 {
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use crate::workflow::Workflow;

    #[test]
    fn the_last_of_doubled_ids_counts() {
        let workflow =
            Workflow::parse(r#"{"1": {"inputs": {"a": 1}}, "1": {"inputs": {"a": 2, "a": 3}}, "2": 5}"#)
                .unwrap();
        let index = workflow.index();
        assert_eq!(index.input("1", "a").unwrap().raw.get(), "3");
        assert!(index.node("2").is_some_and(|node| !node.is_object()));
        assert!(
            index.input("2", "a").is_none() && index.node("3").is_none() && index.input("1", "b").is_none()
        );
        assert_eq!(index.nodes().len(), 3);
    }

    #[test]
    fn every_dot_may_be_the_one() {
        let workflow = Workflow::parse(r#"{"a": {}, "a.": {}, "a..b": {}, "": {}}"#).unwrap();
        let places: Vec<_> = workflow.index().places("a..b.c").collect::<Vec<_>>();
        assert_eq!(places, [("a", ".b.c"), ("a.", "b.c"), ("a..b", "c")]);
        assert_eq!(workflow.index().places(".x").collect::<Vec<_>>(), [("", "x")]);
        assert!(workflow.index().places("none").next().is_none());
    }
}
