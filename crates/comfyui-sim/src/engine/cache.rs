//! Results of nodes kept from one prompt to the next.
//!
//! A result belongs to a signature: the class of the node, its values, and the same of everything above it,
//! without any ids. Only signatures of the prompt that runs now survive it (ComfyUI's classic mode).
//! Nodes made by an expansion live in a cache of their own below the node that expanded, which survives as
//! long as prompts have a node with that id and class.

use super::graph::{Graph, as_link};
use crate::json::{Json, dict, repr_float};
use crate::nodes::{Registry, Value};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

/// What a node left behind.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) ui: Option<Ui>,
    pub(super) outputs: Vec<Value>,
}

/// What a node reported for the user to see.
#[derive(Debug, Clone)]
pub(super) struct Ui {
    pub(super) output: Json,
    pub(super) meta: Json,
    /// False if JSON cannot hold it.
    pub(super) serializable: bool,
}

impl Ui {
    pub(super) fn new(graph: &Graph, id: &str, output: Json, serializable: bool) -> Ui {
        let meta = dict([
            ("node_id", id.into()),
            ("display_node", graph.display(id).into()),
            ("parent_node", graph.parent(id).into()),
            ("real_node_id", graph.real(id).into()),
        ]);
        Ui { output, meta, serializable }
    }
}

/// The prompt cannot be cached at all because a node has no object under `inputs`: ComfyUI's worker thread
/// ends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoInputs;

/// SHA-256 of all that a result depends on; the text itself would grow with the square of the graph.
type Signature = [u8; 32];

/// The cache of the prompt's own nodes, or of the nodes that one expansion made.
#[derive(Debug, Default)]
pub(super) struct Cache {
    /// Signature by node id, of the prompt that runs now (or that ran last through this part).
    signatures: indexmap::IndexMap<String, Signature>,
    entries: HashMap<Signature, Arc<Entry>>,
    below: indexmap::IndexMap<(String, String), Cache>,
}

impl Cache {
    /// Takes up a prompt: computes the signatures and drops everything that is not in it.
    pub(super) fn begin<'a>(
        &mut self,
        ids: impl Iterator<Item = &'a str>,
        signer: &Signer<'_>,
    ) -> Result<(), NoInputs> {
        let ids: Vec<&str> = ids.collect();
        self.signatures.clear();
        for id in &ids {
            self.signatures.insert((*id).to_owned(), signer.sign(id)?);
        }
        let kept: std::collections::HashSet<&Signature> = self.signatures.values().collect();
        self.entries.retain(|signature, _| kept.contains(signature));
        self.below.retain(|(id, class), _| {
            self.signatures.contains_key(id) && signer.graph.class(id) == Some(class.as_str())
        });
        Ok(())
    }

    /// Takes up the nodes that an expansion made below `parent`.
    pub(super) fn begin_below(
        &mut self,
        parent: &str,
        made: &[String],
        signer: &Signer<'_>,
    ) -> Result<(), NoInputs> {
        let class = signer.graph.class(parent).unwrap_or_default().to_owned();
        let Some(cache) = self.of_mut(parent, signer.graph) else {
            return Ok(());
        };
        cache
            .below
            .entry((parent.to_owned(), class))
            .or_default()
            .begin(made.iter().map(String::as_str), signer)
    }

    /// The part that holds a node.
    fn of(&self, id: &str, graph: &Graph) -> Option<&Cache> {
        match graph.parent(id) {
            None => Some(self),
            Some(parent) => {
                let key = (parent.to_owned(), graph.class(parent)?.to_owned());
                self.of(parent, graph)?.below.get(&key)
            }
        }
    }

    fn of_mut(&mut self, id: &str, graph: &Graph) -> Option<&mut Cache> {
        match graph.parent(id) {
            None => Some(self),
            Some(parent) => {
                let key = (parent.to_owned(), graph.class(parent)?.to_owned());
                self.of_mut(parent, graph)?.below.get_mut(&key)
            }
        }
    }

    /// What is known of a node.
    pub(super) fn get(&self, id: &str, graph: &Graph) -> Option<Arc<Entry>> {
        let cache = self.of(id, graph)?;
        cache.entries.get(cache.signatures.get(id)?).cloned()
    }

    /// Keeps the results of a node.
    pub(super) fn set(&mut self, id: &str, graph: &Graph, entry: Arc<Entry>) {
        if let Some(cache) = self.of_mut(id, graph)
            && let Some(signature) = cache.signatures.get(id)
        {
            cache.entries.insert(*signature, entry);
        }
    }

    /// Every node that has a signature, also those of earlier expansions.
    pub(super) fn all_ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = self.signatures.keys().cloned().collect();
        ids.extend(self.below.values().flat_map(Cache::all_ids));
        ids
    }
}

/// Writes signatures for the nodes of one prompt.
pub(super) struct Signer<'a> {
    pub(super) graph: &'a Graph,
    pub(super) registry: &'a Registry,
    /// Distinguishes prompts, for nodes that must never be found again.
    pub(super) run: u64,
}

impl Signer<'_> {
    fn sign(&self, id: &str) -> Result<Signature, NoInputs> {
        let above = self.ancestors(id)?;
        let order: HashMap<&str, usize> =
            above.iter().enumerate().map(|(at, id)| (id.as_str(), at)).collect();
        let mut digest = Sha256::new();
        for node in std::iter::once(id).chain(above.iter().map(String::as_str)) {
            let mut text = String::new();
            self.describe(node, &order, &mut text)?;
            digest.update(text);
        }
        Ok(digest.finalize().into())
    }

    /// Everything above a node, depth first along the sorted names of the inputs.
    fn ancestors(&self, id: &str) -> Result<Vec<String>, NoInputs> {
        let links_of = |id: &str| -> Result<Vec<String>, NoInputs> {
            if !self.graph.contains(id) {
                return Ok(Vec::new());
            }
            let mut inputs: Vec<_> = self.graph.inputs(id).ok_or(NoInputs)?.iter().collect();
            inputs.sort_by(|left, right| left.0.cmp(right.0));
            // Reversed, because the stack below gives back the last first.
            Ok(inputs.iter().rev().filter_map(|(_, value)| as_link(value)).map(|link| link.node).collect())
        };
        let mut found = indexmap::IndexSet::new();
        let mut open = links_of(id)?;
        while let Some(next) = open.pop() {
            if found.insert(next.clone()) {
                open.extend(links_of(&next)?);
            }
        }
        Ok(found.into_iter().collect())
    }

    fn describe(&self, id: &str, order: &HashMap<&str, usize>, out: &mut String) -> Result<(), NoInputs> {
        if !self.graph.contains(id) {
            self.never_again(id, out);
            return Ok(());
        }
        let class = self.graph.class(id).unwrap_or_default();
        out.push('(');
        Self::value(&Json::from(class), out);
        out.push(' ');
        match self.graph.noted_change(id) {
            Some(Json::Float(mark)) if mark.is_nan() => self.never_again(id, out),
            mark => Self::value(mark.unwrap_or(&Json::Bool(false)), out),
        }
        if self.registry.get(class).is_some_and(crate::nodes::Class::knows_its_id) {
            Self::value(&Json::from(id), out);
        }
        let mut inputs: Vec<_> = self.graph.inputs(id).ok_or(NoInputs)?.iter().collect();
        inputs.sort_by(|left, right| left.0.cmp(right.0));
        for (name, value) in inputs {
            Self::value(&Json::from(name), out);
            match as_link(value) {
                Some(link) => {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "^{}", order.get(link.node.as_str()).copied().unwrap_or_default());
                    Self::value(&link.slot, out);
                }
                None => Self::value(value, out),
            }
        }
        out.push(')');
        Ok(())
    }

    /// What a failed change check says equals nothing, so nothing below it is found by another prompt.
    /// (A NaN among the values does not hinder: Python's JSON reader always gives the same one.)
    fn never_again(&self, id: &str, out: &mut String) {
        let _ = write!(out, "<never {} {id}>", self.run);
    }

    /// One value so that equal texts mean values that are equal in Python (1, 1.0 and True are).
    fn value(value: &Json, out: &mut String) {
        match value {
            Json::Float(float) if float.fract() == 0.0 && float.abs() < 1e18 => {
                let _ = write!(out, "{},", *float as i64);
            }
            Json::Float(float) => {
                let _ = write!(out, "{},", repr_float(*float));
            }
            Json::Bool(value) => {
                let _ = write!(out, "{},", u8::from(*value));
            }
            Json::Int(value) => {
                let _ = write!(out, "{value},");
            }
            Json::List(values) => {
                out.push('[');
                values.iter().for_each(|value| Self::value(value, out));
                out.push(']');
            }
            Json::Dict(members) => {
                let mut members: Vec<_> = members.iter().collect();
                members.sort_by(|left, right| left.0.cmp(right.0));
                out.push('{');
                for (key, value) in members {
                    Self::value(&Json::from(key), out);
                    Self::value(value, out);
                }
                out.push('}');
            }
            scalar => {
                let _ = write!(out, "{},", scalar.dump());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SimConfig;
    use crate::engine::Dirs;
    use std::path::Path;

    fn sign(prompt: &str, id: &str, run: u64) -> Result<Signature, NoInputs> {
        let registry = Registry::new(Arc::new(SimConfig::default()), &Dirs::below(Path::new("nowhere")));
        let graph = Graph::new(prompt.parse().unwrap());
        Signer { graph: &graph, registry: &registry, run }.sign(id)
    }

    #[test]
    fn ids_and_the_kind_of_number_do_not_matter_but_values_above_do() {
        let one = r#"{"1": {"class_type": "EmptyImage", "inputs": {"width": 64, "color": 1}},
                      "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}}}"#;
        let renamed = r#"{"b": {"class_type": "ImageInvert", "inputs": {"image": ["a", 0]}},
                          "a": {"class_type": "EmptyImage", "inputs": {"color": true, "width": 64.0}}}"#;
        let other = r#"{"1": {"class_type": "EmptyImage", "inputs": {"width": 64, "color": 2}},
                        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}}}"#;
        assert_eq!(sign(one, "2", 1), sign(renamed, "b", 2));
        assert_ne!(sign(one, "2", 1), sign(other, "2", 1));
        assert_ne!(sign(one, "1", 1), sign(one, "2", 1));
    }

    #[test]
    fn failed_checks_and_dangling_links_are_never_found_again() {
        let nan = r#"{"1": {"class_type": "RigText", "inputs": {"text": "a", "x": NaN}}}"#;
        assert_eq!(sign(nan, "1", 1), sign(nan, "1", 2));
        let changed = r#"{"1": {"class_type": "LoadImage", "inputs": {"image": "a"}, "is_changed": NaN}}"#;
        let dangling = r#"{"1": {"class_type": "ImageInvert", "inputs": {"image": ["99", 0]}}}"#;
        for prompt in [changed, dangling] {
            assert_eq!(sign(prompt, "1", 1), sign(prompt, "1", 1));
            assert_ne!(sign(prompt, "1", 1), sign(prompt, "1", 2));
        }
    }

    #[test]
    fn cycles_end_and_missing_inputs_are_noticed() {
        let cycle = r#"{"1": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
                        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}}}"#;
        assert!(sign(cycle, "1", 1).is_ok());
        for inputs in [r#""#, r#", "inputs": null"#, r#", "inputs": []"#] {
            let prompt = format!(r#"{{"2": {{"class_type": "ImageInvert"{inputs}}}}}"#);
            assert_eq!(sign(&prompt, "2", 1), Err(NoInputs), "{prompt}");
        }
    }

    #[test]
    fn only_the_nodes_of_the_running_prompt_survive() {
        let registry = Registry::new(Arc::new(SimConfig::default()), &Dirs::below(Path::new("nowhere")));
        let mut cache = Cache::default();
        let mut run = 0;
        let mut found = |color: u32| {
            let prompt =
                format!(r#"{{"1": {{"class_type": "EmptyImage", "inputs": {{"color": {color}}}}}}}"#);
            let graph = Graph::new(prompt.parse().unwrap());
            run += 1;
            cache.begin(["1"].into_iter(), &Signer { graph: &graph, registry: &registry, run }).unwrap();
            let found = cache.get("1", &graph).is_some();
            cache.set("1", &graph, Arc::new(Entry { ui: None, outputs: vec![] }));
            found
        };
        assert_eq!([1, 1, 2, 1].map(&mut found), [false, true, false, false]);
    }
}
