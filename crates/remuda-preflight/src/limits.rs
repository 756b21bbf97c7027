//! How large graphs and their results may be.

use comfyui::{outputs, workflow};

/// How large a graph may be, and how much it may leave. Nobody who draws graphs comes near these numbers; whoever sends
/// more costs others their time. Each is a setting of the section `[graph]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphLimits {
    /// Nodes: 20,000.
    pub nodes: usize,
    /// Inputs of one node: 4,096.
    pub inputs: usize,
    /// Output nodes that a request names: 10,000.
    pub targets: usize,
    /// Bytes in the id of a node, the name of a class, an input or a file: 1,024.
    pub name_length: usize,
    /// Different input files that a task names: 1,000.
    pub files: usize,
    /// Files that a task may leave: 20,000.
    pub output_files: usize,
    /// Results of any kind that a task may leave, files included: 100,000.
    pub outputs: usize,
    /// Folders of the workers' hosts below which every tenant may name files by their absolute paths: none.
    pub allowed_paths: Vec<String>,
}

impl Default for GraphLimits {
    fn default() -> Self {
        let (graph, left) = (workflow::Limits::default(), outputs::Limits::default());
        Self {
            nodes: graph.nodes,
            inputs: graph.inputs,
            targets: 10_000,
            name_length: graph.name_length,
            files: 1_000,
            output_files: left.files,
            outputs: left.outputs,
            allowed_paths: Vec::new(),
        }
    }
}

impl GraphLimits {
    /// For reading graphs.
    pub fn workflow(&self) -> workflow::Limits {
        workflow::Limits { nodes: self.nodes, inputs: self.inputs, name_length: self.name_length }
    }

    /// For reading what a prompt left.
    pub fn results(&self) -> outputs::Limits {
        outputs::Limits { files: self.output_files, outputs: self.outputs, name_length: self.name_length }
    }
}

/// The setting behind a limit on graphs.
pub fn setting(limit: workflow::Limit) -> &'static str {
    match limit {
        workflow::Limit::Nodes => "graph.nodes",
        workflow::Limit::Inputs => "graph.inputs",
        _ => "graph.name_length",
    }
}
