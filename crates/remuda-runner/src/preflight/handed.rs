//! What is handed to an input by a link, as far as the graph shows it: texts that nodes hold and hand on.
//!
//! Each node is looked at once, however many inputs are linked to it, and what a chain of nodes ends in is remembered for
//! the whole chain: a graph may have as many loaders at the end of a chain as the chain has nodes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use comfyui::workflow::{Index, Input};

/// So many nodes are looked at behind one that has several inputs.
const BEHIND: usize = 64;

/// Words in the name of a class that holds or hands on texts beside other inputs.
const HOLDERS: [&str; 8] =
    ["primitive", "string", "text", "switch", "reroute", "constant", "literal", "pass"];

/// Words in the name of one that makes a text of several.
const JOINERS: [&str; 6] = ["concat", "join", "format", "append", "combine", "replace"];

/// What arrives over a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hands {
    /// This text.
    Text(Arc<str>),
    /// One of several texts, and among them this one, which cannot be meant well.
    Among(Arc<str>),
    /// It cannot be seen.
    Unknown,
}

/// What a node does with what it is given.
#[derive(Clone)]
enum Look {
    /// It hands on the one text that it holds.
    Text(Arc<str>),
    /// It hands on what it is given by this node.
    On(Arc<str>),
    /// It has several inputs, of which one may be what it hands on.
    Several { bad: Option<Arc<str>>, links: Vec<Arc<str>> },
    /// Nothing can be said of it.
    Unknown,
}

/// What nodes hand on.
pub(super) struct Handed<'a> {
    index: &'a Index<'a>,
    /// Whether a text among others cannot be meant well; `true` when it may be only a part of one.
    is_bad: &'a dyn Fn(&str, bool) -> bool,
    looks: HashMap<Arc<str>, Look>,
    ends: HashMap<Arc<str>, Hands>,
}

impl<'a> Handed<'a> {
    pub(super) fn new(index: &'a Index<'a>, is_bad: &'a dyn Fn(&str, bool) -> bool) -> Self {
        Self { index, is_bad, looks: HashMap::new(), ends: HashMap::new() }
    }

    /// What arrives at an input that is a link.
    pub(super) fn over(&mut self, input: &Input<'_>) -> Hands {
        let Some(link) = input.link() else { return Hands::Unknown };
        let mut at: Arc<str> = Arc::from(link.node.as_ref());
        let mut chain = Vec::new();
        let end = loop {
            if let Some(known) = self.ends.get(&at) {
                break known.clone();
            }
            // A chain that comes back to itself ends here.
            self.ends.insert(Arc::clone(&at), Hands::Unknown);
            chain.push(Arc::clone(&at));
            match self.look(&at) {
                Look::Text(text) => break Hands::Text(text),
                Look::On(further) => at = further,
                Look::Several { bad: Some(bad), .. } => break Hands::Among(bad),
                Look::Several { links, .. } => break self.behind(links),
                Look::Unknown => break Hands::Unknown,
            }
        };
        for id in chain {
            self.ends.insert(id, end.clone());
        }
        end
    }

    /// Whether one of the nodes behind a node with several inputs holds a text that cannot be meant well.
    fn behind(&mut self, links: Vec<Arc<str>>) -> Hands {
        let mut queue = VecDeque::from(links);
        let mut seen = HashSet::new();
        while let Some(id) = queue.pop_front() {
            if seen.len() == BEHIND {
                break;
            }
            if !seen.insert(Arc::clone(&id)) {
                continue;
            }
            match self.look(&id) {
                Look::Text(text) if (self.is_bad)(&text, false) => return Hands::Among(text),
                Look::Several { bad: Some(bad), .. } => return Hands::Among(bad),
                Look::On(further) => queue.push_back(further),
                Look::Several { links, .. } => queue.extend(links),
                Look::Text(_) | Look::Unknown => {}
            }
        }
        Hands::Unknown
    }

    fn look(&mut self, id: &Arc<str>) -> Look {
        if let Some(known) = self.looks.get(id) {
            return known.clone();
        }
        let look = self.look_first(id);
        self.looks.insert(Arc::clone(id), look.clone());
        look
    }

    fn look_first(&self, id: &str) -> Look {
        let Some(node) = self.index.node(id) else { return Look::Unknown };
        let inputs = node.inputs().unwrap_or_default();
        if let [one] = inputs.as_slice() {
            return match (one.link(), one.text()) {
                (Some(link), _) => Look::On(Arc::from(link.node.as_ref())),
                (None, Some(text)) => Look::Text(Arc::from(text.as_ref())),
                (None, None) => Look::Unknown,
            };
        }
        let class = node.class_type().unwrap_or_default().to_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| class.contains(word));
        let joins = has(&JOINERS);
        if !joins && !has(&HOLDERS) {
            return Look::Unknown;
        }
        let texts = inputs.iter().filter_map(Input::text);
        let bad = texts.into_iter().find(|text| (self.is_bad)(text, joins));
        let links = inputs.iter().filter_map(Input::link).map(|link| Arc::from(link.node.as_ref()));
        Look::Several { bad: bad.map(|bad| Arc::from(bad.as_ref())), links: links.take(BEHIND).collect() }
    }
}

#[cfg(test)]
mod tests {
    use comfyui::Workflow;
    use serde_json::{Value, json};

    use super::*;

    fn handed(graph: &Value) -> Hands {
        let workflow = Workflow::parse(graph.to_string()).unwrap();
        let index = workflow.index();
        let input = index.input("load", "image").unwrap();
        let is_bad = |text: &str, part: bool| text.contains("bad") && !(part && text.starts_with('/'));
        Handed::new(&index, &is_bad).over(&input)
    }

    fn graph(nodes: Value) -> Value {
        let mut graph = nodes;
        graph["load"] = json!({"class_type": "LoadImage", "inputs": {"image": ["0", 0]}});
        graph
    }

    #[test]
    fn a_text_arrives_over_a_chain_of_any_length() {
        let mut nodes = json!({"100": {"class_type": "Any", "inputs": {"value": "x.png"}}});
        for at in 0..100 {
            nodes[at.to_string()] =
                json!({"class_type": "Reroute", "inputs": {"": [(at + 1).to_string(), 0]}});
        }
        assert_eq!(handed(&graph(nodes)), Hands::Text("x.png".into()));
        let round = json!({"0": {"class_type": "Reroute", "inputs": {"": ["1", 0]}},
            "1": {"class_type": "Reroute", "inputs": {"": ["0", 0]}}});
        assert_eq!(handed(&graph(round)), Hands::Unknown);
    }

    #[test]
    fn of_several_texts_only_the_bad_one_counts() {
        let among = Hands::Among("bad".into());
        let one = |class: &str, inputs: Value| {
            handed(&graph(json!({"0": {"class_type": class, "inputs": inputs},
            "1": {"class_type": "Value", "inputs": {"value": "bad"}}})))
        };
        assert_eq!(one("PrimitiveString", json!({"value": "bad", "control": "fixed"})), among);
        assert_eq!(one("TextSwitch", json!({"a": "good", "b": ["1", 0]})), among);
        assert_eq!(one("TextSwitch", json!({"a": "good", "b": "fine"})), Hands::Unknown);
        assert_eq!(one("Download", json!({"url": "bad", "n": 1})), Hands::Unknown, "no holder of texts");
        assert_eq!(one("StringConcatenate", json!({"a": "input", "b": "/bad"})), Hands::Unknown, "a part");
    }
}
