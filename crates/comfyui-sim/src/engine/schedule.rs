//! Which node comes next: everything it needs first, and of those that could run the one nearest to a picture.

use super::graph::{Graph, as_link};
use indexmap::{IndexMap, IndexSet};

/// A node that waits for its turn.
#[derive(Debug, Default)]
struct Waiting {
    /// How many nodes (and pending asynchronous runs) it waits for.
    blocked_by: usize,
    /// The nodes that wait for it.
    blocking: IndexSet<String>,
}

/// A link leads to a node that does not exist. ComfyUI's worker thread ends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoSuchNode;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Run this node.
    Node(String),
    /// Nothing can run before an asynchronous node is done.
    Wait,
    /// The nodes wait for each other; these.
    Cycle(Vec<String>),
    /// Nothing is left.
    Done,
}

/// The nodes still to run. The order of insertion matters for the choice, hence ordered maps.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    waiting: IndexMap<String, Waiting>,
}

impl Schedule {
    /// Adds a node and all it needs that is not cached.
    pub(super) fn add(
        &mut self,
        id: &str,
        graph: &Graph,
        cached: &impl Fn(&str) -> bool,
    ) -> Result<(), NoSuchNode> {
        let mut found = Vec::new();
        let mut open = vec![id.to_owned()];
        while let Some(id) = open.pop() {
            if self.waiting.contains_key(&id) {
                continue;
            }
            let inputs = graph.inputs(&id).ok_or(NoSuchNode)?;
            self.waiting.insert(id.clone(), Waiting::default());
            for link in inputs.values().filter_map(as_link) {
                if !cached(&link.node) {
                    open.push(link.node.clone());
                    found.push((link.node, id.clone()));
                }
            }
        }
        for (from, to) in found {
            self.block(&from, &to);
        }
        Ok(())
    }

    /// Makes one node wait for the output of another, which is added if it is neither there nor cached.
    pub(super) fn wait_for(
        &mut self,
        from: &str,
        to: &str,
        graph: &Graph,
        cached: &impl Fn(&str) -> bool,
    ) -> Result<(), NoSuchNode> {
        if !cached(from) {
            self.add(from, graph, cached)?;
            self.block(from, to);
        }
        Ok(())
    }

    fn block(&mut self, from: &str, to: &str) {
        let new = self.waiting.get_mut(from).is_some_and(|node| node.blocking.insert(to.to_owned()));
        if new && let Some(node) = self.waiting.get_mut(to) {
            node.blocked_by += 1;
        }
    }

    /// Holds a node back until [`Schedule::release`].
    pub(super) fn hold(&mut self, id: &str) {
        if let Some(node) = self.waiting.get_mut(id) {
            node.blocked_by += 1;
        }
    }

    /// Undoes one [`Schedule::hold`].
    pub(super) fn release(&mut self, id: &str) {
        if let Some(node) = self.waiting.get_mut(id) {
            node.blocked_by = node.blocked_by.saturating_sub(1);
        }
    }

    /// Takes a node out because it has run.
    pub(super) fn finish(&mut self, id: &str) {
        let Some(node) = self.waiting.shift_remove(id) else {
            return;
        };
        for blocked in node.blocking {
            self.release(&blocked);
        }
    }

    /// Chooses the next node. `held` tells that some asynchronous node is pending.
    pub(super) fn next(
        &self,
        held: bool,
        is_output: impl Fn(&str) -> bool,
        is_async: impl Fn(&str) -> bool,
    ) -> Next {
        if self.waiting.is_empty() {
            return Next::Done;
        }
        let ready = || self.waiting.iter().filter(|(_, node)| node.blocked_by == 0);
        let Some((first, _)) = ready().next() else {
            return if held { Next::Wait } else { Next::Cycle(self.cycle()) };
        };
        let leads_to_output = |node: &Waiting| node.blocking.iter().any(|id| is_output(id));
        let chosen = ready()
            .find(|(id, _)| is_output(id) || is_async(id))
            .or_else(|| ready().find(|(_, node)| leads_to_output(node)))
            .or_else(|| {
                ready().find(|(_, node)| {
                    node.blocking.iter().filter_map(|id| self.waiting.get(id)).any(leads_to_output)
                })
            })
            .map_or(first, |(id, _)| id);
        Next::Node(chosen.clone())
    }

    /// The nodes that remain when everything that waits for nothing is taken away, again and again.
    fn cycle(&self) -> Vec<String> {
        let mut needs: IndexMap<&str, IndexSet<&str>> =
            self.waiting.keys().map(|id| (id.as_str(), IndexSet::new())).collect();
        for (from, node) in &self.waiting {
            for to in &node.blocking {
                if let Some(needs) = needs.get_mut(to.as_str()) {
                    needs.insert(from);
                }
            }
        }
        loop {
            let free: Vec<&str> =
                needs.iter().filter(|(_, needs)| needs.is_empty()).map(|(id, _)| *id).collect();
            if free.is_empty() {
                return needs.keys().map(|id| (*id).to_owned()).collect();
            }
            for id in free {
                needs.shift_remove(id);
                for needs in needs.values_mut() {
                    needs.shift_remove(id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;

    /// Nodes named with S are outputs; each line is `node: what it needs`.
    fn graph(lines: &[(&str, &[&str])]) -> Graph {
        let nodes = lines.iter().map(|(id, needs)| {
            let inputs = needs
                .iter()
                .enumerate()
                .map(|(at, from)| (format!("i{at}"), Json::List(vec![Json::from(*from), Json::Int(0)])));
            let node = crate::json::dict([
                ("class_type", Json::from(*id)),
                ("inputs", Json::Dict(inputs.collect())),
            ]);
            ((*id).to_owned(), node)
        });
        Graph::new(Json::Dict(nodes.collect()))
    }

    fn order(graph: &Graph, outputs: &[&str]) -> Vec<String> {
        let mut schedule = Schedule::default();
        for output in outputs {
            schedule.add(output, graph, &|_| false).unwrap();
        }
        let mut order = Vec::new();
        loop {
            match schedule.next(false, |id| id.starts_with('S'), |id| id.starts_with('A')) {
                Next::Node(id) => {
                    schedule.finish(&id);
                    order.push(id);
                }
                Next::Done => return order,
                other => {
                    order.push(format!("{other:?}"));
                    return order;
                }
            }
        }
    }

    #[test]
    fn outputs_come_as_soon_as_they_can() {
        // The usual graph of a render: the last input of an output is visited first.
        let render = graph(&[
            ("ckpt", &[]),
            ("pos", &["ckpt"]),
            ("neg", &["ckpt"]),
            ("latent", &[]),
            ("sampler", &["ckpt", "pos", "neg", "latent"]),
            ("decode", &["sampler", "ckpt"]),
            ("S", &["decode"]),
        ]);
        assert_eq!(order(&render, &["S"]), ["ckpt", "latent", "neg", "pos", "sampler", "decode", "S"]);
        let branches = graph(&[("block", &[]), ("S1", &["block"]), ("S2", &[])]);
        assert_eq!(order(&branches, &["S1", "S2"]), ["S2", "block", "S1"]);
    }

    #[test]
    fn asynchronous_nodes_start_first_and_hold_back_what_follows() {
        let graph = graph(&[("A1", &[]), ("A2", &[]), ("x", &[]), ("S1", &["A1"]), ("S2", &["x"])]);
        assert_eq!(order(&graph, &["S2", "S1"])[0], "A1");
        let mut schedule = Schedule::default();
        schedule.add("S1", &graph, &|_| false).unwrap();
        schedule.hold("A1");
        assert_eq!(schedule.next(true, |_| false, |_| false), Next::Wait);
        schedule.release("A1");
        assert_eq!(schedule.next(true, |_| false, |_| false), Next::Node("A1".into()));
    }

    #[test]
    fn cycles_and_dangling_links_are_told_apart() {
        let cyclic = graph(&[("a", &["b"]), ("b", &["a"]), ("S", &["a"])]);
        assert_eq!(order(&cyclic, &["S"]), [r#"Cycle(["S", "a", "b"])"#]);
        let dangling = graph(&[("S", &["gone"])]);
        assert_eq!(Schedule::default().add("S", &dangling, &|_| false), Err(NoSuchNode));
    }
}
