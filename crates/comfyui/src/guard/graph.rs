//! The graph of a workflow: who links to whom, what would be validated and run, cycles and long chains.
//!
//! Nothing here recurses over the graph, so its size and depth are bounded by memory only.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::object_info::{NodeInfo, ObjectInfo};
use crate::workflow::{Input, Link, Node};

use super::expand::{Expected, expected};
use super::known::{Known, Lookup};

/// One node as ComfyUI sees it: of doubled ids and doubled inputs only the last.
pub(super) struct GraphNode<'a> {
    pub(super) node: Node<'a>,
    pub(super) class: Option<Cow<'a, str>>,
    /// What the server says about the class, if it knows it and was asked.
    pub(super) info: Option<&'a NodeInfo>,
    /// None when `inputs` is missing or no object.
    pub(super) inputs: Option<Vec<GraphInput<'a>>>,
    /// What the class expects, given the inputs of this node. Empty without `info`.
    pub(super) expected: Rc<Vec<Expected<'a>>>,
    /// Whether the server would look at this node before it answers. True for all without node descriptions.
    pub(super) validated: bool,
    /// Whether the server would run this node, or try to.
    pub(super) executed: bool,
}

pub(super) struct GraphInput<'a> {
    pub(super) input: Input<'a>,
    pub(super) link: Option<Link<'a>>,
    /// The index of the node linked to, if it is in the graph.
    pub(super) target: Option<usize>,
    /// Whether the class declares the input; None when the class is not known.
    pub(super) declared: Option<bool>,
    /// Where in what the class expects it stands.
    pub(super) expected: Option<usize>,
}

pub(super) struct Graph<'a> {
    pub(super) nodes: Vec<GraphNode<'a>>,
    /// Whether node descriptions were given.
    pub(super) described: bool,
    /// The output nodes that are asked for. Empty without node descriptions.
    pub(super) outputs: Vec<usize>,
    /// Ids and names that stand twice: the index of the node and, for an input, its name.
    pub(super) doubled: Vec<(usize, Option<String>)>,
}

impl<'a> Graph<'a> {
    pub(super) fn new(
        all: Vec<Node<'a>>,
        info: Option<&'a ObjectInfo>,
        targets: Option<&[String]>,
        known: &mut Known<'a>,
    ) -> Self {
        let (nodes, twice) = last_of_each(all, |node| node.id().to_owned());
        let mut doubled: Vec<_> = twice.into_iter().map(|at| (at, None)).collect();
        let index: HashMap<String, usize> =
            nodes.iter().enumerate().map(|(at, node)| (node.id().to_owned(), at)).collect();
        let mut built = Vec::with_capacity(nodes.len());
        for (at, node) in nodes.into_iter().enumerate() {
            let class = node.class_type();
            let info = class.as_deref().and_then(|class| info?.get(class));
            let inputs = node.inputs().map(|inputs| {
                let (inputs, twice) = last_of_each(inputs, |input| input.name.clone().into_owned());
                doubled.extend(
                    twice.into_iter().map(|input| (at, Some(inputs[input].name.clone().into_owned()))),
                );
                inputs
            });
            let expected = match (info, &inputs) {
                (Some(info), Some(inputs)) => {
                    known.expected(info).unwrap_or_else(|| Rc::new(expected(info, inputs, known)))
                }
                _ => Rc::default(),
            };
            let names = Lookup::new(expected.iter().map(|one| one.name.as_ref()));
            let connect = |input: Input<'a>| {
                let link = input.link();
                let target = link.as_ref().and_then(|link| index.get(link.node.as_ref()).copied());
                let expected = names.find(&input.name);
                let declared = info.map(|_| expected.is_some());
                GraphInput { input, link, target, declared, expected }
            };
            let inputs = inputs.map(|inputs| inputs.into_iter().map(connect).collect());
            drop(names);
            built.push(GraphNode { node, class, info, inputs, expected, validated: false, executed: false });
        }
        let mut graph = Self { nodes: built, described: info.is_some(), outputs: Vec::new(), doubled };
        graph.mark(targets);
        graph
    }

    /// Finds out from the output nodes backwards what would be validated and run.
    fn mark(&mut self, targets: Option<&[String]>) {
        let described = self.described;
        let targets: Option<HashSet<&str>> =
            targets.map(|targets| targets.iter().map(String::as_str).collect());
        let wanted = |node: &GraphNode<'_>| {
            let output = node.info.is_some_and(|info| info.output_node);
            output && targets.as_ref().is_none_or(|targets| targets.contains(node.node.id()))
        };
        self.outputs = (0..self.nodes.len()).filter(|&at| wanted(&self.nodes[at])).collect();
        // What is not known could be an output: better to judge its surroundings too strictly than to excuse them.
        let known = |node: &GraphNode<'_>| described && node.info.is_some();
        let mut open: Vec<usize> = self.outputs.clone();
        open.extend((0..self.nodes.len()).filter(|&at| !known(&self.nodes[at])));
        for validating in [true, false] {
            let mut open = open.clone();
            while let Some(at) = open.pop() {
                let node = &mut self.nodes[at];
                let marked = if validating { &mut node.validated } else { &mut node.executed };
                if !std::mem::replace(marked, true) {
                    let links = node.inputs.iter().flatten();
                    let followed = links.filter(|input| !validating || input.declared != Some(false));
                    open.extend(followed.filter_map(|input| input.target));
                }
            }
        }
    }

    /// The outputs that depend on one of these nodes, and those that do not.
    pub(super) fn split_outputs(&self, bad: &[bool]) -> (Vec<String>, Vec<String>) {
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for input in node.inputs.iter().flatten().filter(|input| input.declared != Some(false)) {
                if let Some(target) = input.target {
                    users[target].push(at);
                }
            }
        }
        let mut spoilt = vec![false; self.nodes.len()];
        let mut open: Vec<usize> = (0..bad.len()).filter(|&at| bad[at]).collect();
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut spoilt[at], true) {
                open.extend(&users[at]);
            }
        }
        let id = |at: &usize| self.nodes[*at].node.id().to_owned();
        let (refused, accepted): (Vec<usize>, Vec<usize>) = self.outputs.iter().partition(|&&at| spoilt[at]);
        (accepted.iter().map(id).collect(), refused.iter().map(id).collect())
    }

    /// Cycles, each as the indices along the links, and the end and length of the longest chain without one.
    pub(super) fn cycles_and_chain(&self) -> (Vec<Vec<usize>>, Option<(usize, usize)>) {
        let count = self.nodes.len();
        let needs: Vec<Vec<usize>> = (self.nodes.iter())
            .map(|node| {
                let mut needs: Vec<_> =
                    node.inputs.iter().flatten().filter_map(|input| input.target).collect();
                needs.sort_unstable();
                needs.dedup();
                needs
            })
            .collect();
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (at, needs) in needs.iter().enumerate() {
            for &need in needs {
                users[need].push(at);
            }
        }
        let mut waiting: Vec<usize> = needs.iter().map(Vec::len).collect();
        let mut done = vec![false; count];
        let mut length = vec![1_usize; count];
        let mut ready: Vec<usize> = (0..count).filter(|&at| waiting[at] == 0).collect();
        let mut walk = Walk::new(count);
        let mut cycles = Vec::new();
        loop {
            while let Some(at) = ready.pop() {
                if std::mem::replace(&mut done[at], true) {
                    continue;
                }
                for &user in &users[at] {
                    length[user] = length[user].max(length[at] + 1);
                    waiting[user] = waiting[user].saturating_sub(1);
                    if waiting[user] == 0 {
                        ready.push(user);
                    }
                }
            }
            // Whatever is left needs something that is left, so following the needs must come round to a cycle.
            // Taking its nodes for done lets the rest go on.
            let Some(cycle) = walk.next_cycle(&needs, &done) else {
                break;
            };
            ready.extend(&cycle);
            cycles.push(cycle);
        }
        let longest = (0..count).max_by_key(|&at| length[at]).map(|at| (at, length[at]));
        (cycles, longest)
    }
}

/// A walk along the needs of nodes that are not done. It goes on where it was, so that all cycles together cost no
/// more than one look at every link.
struct Walk {
    path: Vec<usize>,
    /// The place of a node in the path.
    place: Vec<Option<usize>>,
    /// How many needs of a node were already seen to be done.
    seen: Vec<usize>,
    /// All nodes before this one are done.
    next: usize,
}

impl Walk {
    fn new(count: usize) -> Self {
        Self { path: Vec::new(), place: vec![None; count], seen: vec![0; count], next: 0 }
    }

    /// The next cycle, beginning with its first node in the text; None when everything is done.
    fn next_cycle(&mut self, needs: &[Vec<usize>], done: &[bool]) -> Option<Vec<usize>> {
        // A node that is done has only needs that are done, so the done part of the path is its end.
        while let Some(at) = self.path.pop_if(|at| done[*at]) {
            self.place[at] = None;
        }
        let mut at = match self.path.pop() {
            Some(at) => at,
            None => {
                self.next += done.get(self.next..)?.iter().position(|done| !done)?;
                self.next
            }
        };
        self.place[at] = None;
        loop {
            if let Some(from) = self.place[at] {
                let mut cycle = self.path.split_off(from);
                for &node in &cycle {
                    self.place[node] = None;
                }
                let first =
                    cycle.iter().enumerate().min_by_key(|(_, node)| **node).map_or(0, |(place, _)| place);
                cycle.rotate_left(first);
                return Some(cycle);
            }
            self.place[at] = Some(self.path.len());
            self.path.push(at);
            self.seen[at] += needs[at][self.seen[at]..].iter().take_while(|&&need| done[need]).count();
            at = *needs[at].get(self.seen[at])?;
        }
    }
}

/// Keeps the last of the items with equal keys, at the place of the first, and tells which of those kept were doubled.
fn last_of_each<T>(items: Vec<T>, key: impl Fn(&T) -> String) -> (Vec<T>, Vec<usize>) {
    let mut places: HashMap<String, (usize, bool)> = HashMap::with_capacity(items.len());
    let mut kept: Vec<T> = Vec::with_capacity(items.len());
    let mut doubled = Vec::new();
    for item in items {
        match places.entry(key(&item)) {
            std::collections::hash_map::Entry::Occupied(mut known) => {
                let (place, told) = known.get_mut();
                kept[*place] = item;
                if !std::mem::replace(told, true) {
                    doubled.push(*place);
                }
            }
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert((kept.len(), false));
                kept.push(item);
            }
        }
    }
    (kept, doubled)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workflow::Workflow;

    fn cycles(links: &[(&str, &[&str])]) -> (Vec<Vec<String>>, usize) {
        let node = |needs: &[&str]| {
            let inputs: serde_json::Map<_, _> =
                needs.iter().enumerate().map(|(at, need)| (format!("i{at}"), json!([need, 0]))).collect();
            json!({"class_type": "X", "inputs": inputs})
        };
        let graph: serde_json::Map<_, _> =
            links.iter().map(|(id, needs)| ((*id).to_owned(), node(needs))).collect();
        let workflow = Workflow::parse(serde_json::Value::Object(graph).to_string()).unwrap();
        let graph = Graph::new(workflow.nodes(), None, None, &mut Known::default());
        let (cycles, longest) = graph.cycles_and_chain();
        let ids = |cycle: &Vec<usize>| cycle.iter().map(|&at| graph.nodes[at].node.id().to_owned()).collect();
        (cycles.iter().map(ids).collect(), longest.unwrap().1)
    }

    #[test]
    fn every_cycle_is_found_once() {
        assert_eq!(cycles(&[("a", &["b"]), ("b", &["c"]), ("c", &[])]), (vec![], 3));
        assert_eq!(cycles(&[("a", &["a"])]).0, [["a"]]);
        let (found, _) = cycles(&[
            ("out", &["b", "e"]),
            ("a", &["b"]),
            ("b", &["c"]),
            ("c", &["a", "ok"]),
            ("ok", &[]),
            ("d", &["e"]),
            ("e", &["d"]),
        ]);
        assert_eq!(found, [vec!["a", "b", "c"], vec!["d", "e"]]);
    }

    #[test]
    fn a_diamond_is_no_cycle() {
        assert_eq!(cycles(&[("a", &["b", "c"]), ("b", &["d"]), ("c", &["d"]), ("d", &[])]), (vec![], 3));
    }
}
