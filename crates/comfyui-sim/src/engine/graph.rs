//! The graph of one prompt, with the nodes that expansions add while it runs.

use crate::json::{Dict, Json};
use indexmap::IndexMap;

/// A link: the node and the output it leads from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Link {
    pub(crate) node: String,
    pub(crate) slot: Json,
}

/// The link that a value is, if it is one: a text and a number.
pub(crate) fn as_link(value: &Json) -> Option<Link> {
    match value.as_list()? {
        [Json::Str(node), slot] if is_number(slot) => Some(Link { node: node.clone(), slot: slot.clone() }),
        _ => None,
    }
}

/// Whether Python calls it an int or a float (a bool is an int).
pub(super) fn is_number(value: &Json) -> bool {
    value.is_number()
}

/// `values[slot]` as Python indexes: from the end if negative.
pub(super) fn pick<'a, T>(values: &'a [T], slot: &Json) -> Option<&'a T> {
    let index = match slot {
        Json::Bool(value) => i128::from(*value),
        Json::Int(value) => *value,
        _ => return None,
    };
    let length = i128::try_from(values.len()).ok()?;
    let index = if index < 0 { index + length } else { index };
    values.get(usize::try_from(index).ok()?)
}

/// A node that an expansion made.
#[derive(Debug, Clone)]
struct Made {
    node: Json,
    parent: String,
    display: String,
}

/// All nodes that exist now.
#[derive(Debug)]
pub(super) struct Graph {
    original: Json,
    made: IndexMap<String, Made>,
}

impl Graph {
    pub(super) fn new(original: Json) -> Graph {
        Graph { original, made: IndexMap::new() }
    }

    /// The prompt as submitted (and, for nodes with a change check, what that check said).
    pub(super) fn original(&self) -> &Json {
        &self.original
    }

    fn node(&self, id: &str) -> Option<&Json> {
        self.made.get(id).map(|made| &made.node).or_else(|| self.original.get(id))
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.node(id).is_some()
    }

    /// The class of a node that is there.
    pub(super) fn class(&self, id: &str) -> Option<&str> {
        self.node(id)?.get("class_type")?.as_str()
    }

    /// The inputs of a node; `None` if it is not there or what stands there is no object.
    pub(super) fn inputs(&self, id: &str) -> Option<&Dict> {
        self.node(id)?.get("inputs")?.as_dict()
    }

    /// Notes what the change check of a node said, where ComfyUI notes it: in the node.
    pub(super) fn note_change(&mut self, id: &str, value: Json) {
        let node = match self.made.get_mut(id) {
            Some(made) => Some(&mut made.node),
            None => self.original.as_dict_mut().and_then(|nodes| nodes.get_mut(id)),
        };
        if let Some(node) = node.and_then(Json::as_dict_mut) {
            node.insert("is_changed".into(), value);
        }
    }

    pub(super) fn noted_change(&self, id: &str) -> Option<&Json> {
        self.node(id)?.get("is_changed")
    }

    /// Adds a node below the one that expanded.
    pub(super) fn add(&mut self, id: &str, node: Json, parent: &str) {
        let made = Made { node, parent: parent.to_owned(), display: parent.to_owned() };
        self.made.insert(id.to_owned(), made);
    }

    /// The node that expanded into this one.
    pub(super) fn parent(&self, id: &str) -> Option<&str> {
        self.made.get(id).map(|made| made.parent.as_str())
    }

    /// The node of the submitted prompt that this one stands for.
    pub(super) fn real<'a>(&'a self, mut id: &'a str) -> &'a str {
        while let Some(made) = self.made.get(id) {
            id = &made.parent;
        }
        id
    }

    /// The node that a user should see working.
    pub(super) fn display<'a>(&'a self, mut id: &'a str) -> &'a str {
        while let Some(made) = self.made.get(id) {
            id = &made.display;
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_a_text_and_a_number() {
        let is_link = |text: &str| as_link(&Json::parse(text.as_bytes()).unwrap()).is_some();
        for text in [r#"["1", 0]"#, r#"["1", 1.0]"#, r#"["1", true]"#] {
            assert!(is_link(text), "{text}");
        }
        for text in [r#"[1, 0]"#, r#"["1", "0"]"#, r#"["1"]"#, r#"["1", 0, 0]"#, r#""1""#] {
            assert!(!is_link(text), "{text}");
        }
    }

    #[test]
    fn slots_count_from_the_end_when_negative() {
        assert_eq!(pick(&["a", "b"], &Json::Int(-1)), Some(&"b"));
        assert_eq!(pick(&["a", "b"], &Json::Bool(true)), Some(&"b"));
        assert_eq!(pick(&["a", "b"], &Json::Int(2)), None);
        assert_eq!(pick(&["a", "b"], &Json::Int(-3)), None);
    }

    #[test]
    fn expanded_nodes_know_where_they_come_from() {
        let mut graph = Graph::new(Json::parse(br#"{"1": {"class_type": "A", "inputs": {}}}"#).unwrap());
        let node = Json::parse(br#"{"class_type": "B", "inputs": {}}"#).unwrap();
        graph.add("1.0.0.1", node.clone(), "1");
        graph.add("1.0.0.1.0.0.1", node, "1.0.0.1");
        assert_eq!(graph.real("1.0.0.1.0.0.1"), "1");
        assert_eq!(graph.parent("1.0.0.1.0.0.1"), Some("1.0.0.1"));
        assert_eq!(graph.display("1.0.0.1"), "1");
        assert_eq!(graph.parent("1"), None);
    }
}
