//! What is handed to an input by a link, as far as the graph shows it: texts that nodes hold and hand on.
//!
//! Each node and each link is looked at once, however many inputs lead there, and each text is judged once: a graph may have
//! as many loaders behind its texts as it has texts.

use std::sync::Arc;

use comfyui::workflow::{Index, Input};

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

/// What a node does with what it is given. Nodes are numbers in the index.
enum Look {
    /// It hands on the one text that it holds.
    Text(Arc<str>),
    /// It hands on what it is given by this node.
    On(usize),
    /// It has several inputs, of which one, or all together, may be what it hands on.
    Several { bad: Option<Arc<str>>, links: Vec<usize>, joins: bool },
    /// Nothing can be said of it.
    Unknown,
}

/// What comes out of a node.
#[derive(Debug, Clone)]
struct End {
    hands: Hands,
    /// The text in it that cannot be meant well as a whole name …
    bad: Option<Arc<str>>,
    /// … or as a part of one.
    bad_part: Option<Arc<str>>,
}

impl End {
    const UNKNOWN: Self = Self { hands: Hands::Unknown, bad: None, bad_part: None };

    fn among(bad: Option<Arc<str>>) -> Self {
        let hands = bad.clone().map_or(Hands::Unknown, Hands::Among);
        Self { hands, bad_part: bad.clone(), bad }
    }
}

/// What nodes hand on.
pub(super) struct Handed<'a> {
    index: &'a Index<'a>,
    /// Whether a text among others cannot be meant well; `true` when it may be only a part of one.
    is_bad: &'a dyn Fn(&str, bool) -> bool,
    ends: Vec<Option<End>>,
}

impl<'a> Handed<'a> {
    pub(super) fn new(index: &'a Index<'a>, is_bad: &'a dyn Fn(&str, bool) -> bool) -> Self {
        Self { index, is_bad, ends: vec![None; index.nodes().len()] }
    }

    /// What arrives at an input that is a link.
    pub(super) fn over(&mut self, input: &Input<'_>) -> Hands {
        match self.source(input) {
            Some(node) => self.end(node).hands,
            None => Hands::Unknown,
        }
    }

    fn source(&self, input: &Input<'_>) -> Option<usize> {
        self.index.position(&input.source()?)
    }

    /// What comes out of a node. Not by recursion: a chain may be as long as a graph.
    fn end(&mut self, first: usize) -> End {
        let mut path = vec![(first, None, 0)];
        while let Some((node, look, next)) = path.last_mut() {
            let node = *node;
            if look.is_none() {
                if self.ends[node].is_some() {
                    path.pop();
                    continue;
                }
                // A way that comes back to itself ends here.
                self.ends[node] = Some(End::UNKNOWN);
                *look = Some(self.look(node));
            }
            let Some(seen) = look else { continue };
            let links: &[usize] = match seen {
                Look::On(further) => std::slice::from_ref(further),
                Look::Several { bad: None, links, .. } => links,
                _ => &[],
            };
            if let Some(&further) = links.get(*next) {
                *next += 1;
                path.push((further, None, 0));
                continue;
            }
            let end = self.settled(seen);
            self.ends[node] = Some(end);
            path.pop();
        }
        self.known(first)
    }

    fn known(&self, node: usize) -> End {
        self.ends[node].clone().unwrap_or(End::UNKNOWN)
    }

    /// What comes out of a node when all that leads to it is known.
    fn settled(&self, look: &Look) -> End {
        match look {
            Look::Text(text) => {
                let bad = |part| (self.is_bad)(text, part).then(|| Arc::clone(text));
                End { hands: Hands::Text(Arc::clone(text)), bad: bad(false), bad_part: bad(true) }
            }
            Look::On(further) => self.known(*further),
            Look::Several { bad: Some(bad), .. } => End::among(Some(Arc::clone(bad))),
            Look::Several { links, joins, .. } => {
                let bad = |node: &usize| {
                    let end = self.ends[*node].as_ref()?;
                    if *joins { end.bad_part.clone() } else { end.bad.clone() }
                };
                End::among(links.iter().find_map(bad))
            }
            Look::Unknown => End::UNKNOWN,
        }
    }

    fn look(&self, node: usize) -> Look {
        let node = &self.index.nodes()[node];
        let inputs = node.inputs().unwrap_or_default();
        if let [one] = inputs.as_slice() {
            return match (self.source(one), one.text()) {
                (Some(node), _) => Look::On(node),
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
        let bad = inputs.iter().filter_map(Input::text).find(|text| (self.is_bad)(text, joins));
        let links = inputs.iter().filter_map(|input| self.source(input)).collect();
        Look::Several { bad: bad.map(|bad| Arc::from(bad.as_ref())), links, joins }
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
            "1": {"class_type": "Value", "inputs": {"value": "bad"}},
            "2": {"class_type": "Value", "inputs": {"value": "/bad"}}})))
        };
        assert_eq!(one("PrimitiveString", json!({"value": "bad", "control": "fixed"})), among);
        assert_eq!(one("TextSwitch", json!({"a": "good", "b": ["1", 0]})), among);
        assert_eq!(one("TextSwitch", json!({"a": "good", "b": "fine"})), Hands::Unknown);
        assert_eq!(one("Download", json!({"url": "bad", "n": 1})), Hands::Unknown, "no holder of texts");
        assert_eq!(one("StringConcatenate", json!({"a": "input", "b": "/bad"})), Hands::Unknown, "a part");
        assert_eq!(one("StringConcatenate", json!({"a": "input", "b": ["2", 0]})), Hands::Unknown, "too");
        assert_eq!(one("TextSwitch", json!({"a": "input", "b": ["2", 0]})), Hands::Among("/bad".into()));
        assert_eq!(one("Reroute", json!({"": ["1", false]})), Hands::Text("bad".into()), "any list of two");
    }
}
