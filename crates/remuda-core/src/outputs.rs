//! What a task left.

use serde::{Deserialize, Serialize};

use crate::Sha256;

/// One file of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputFile {
    /// Its number within the result, from 0.
    pub n: i32,
    /// Where it is in the file store; never a path.
    pub key: String,
    /// Its name at ComfyUI, without folders.
    pub filename: String,
    /// The folder it was in there, below that of its type.
    #[serde(default)]
    pub subfolder: String,
    /// The node that made it.
    pub node_id: String,
    /// Under which name the node listed it: `images`, `gifs`, `audio`, …
    pub output: String,
    /// `output` or `temp`.
    pub file_type: String,
    /// Media type.
    pub mime: String,
    /// In bytes.
    pub size: i64,
    /// Of the bytes.
    pub sha256: Sha256,
}

/// What a completed task left.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Every file, in the order of the history entry.
    pub files: Vec<OutputFile>,
    /// `outputs` of ComfyUI's history entry, as they were.
    pub outputs: serde_json::Value,
    /// From the first node to the last, as ComfyUI says.
    pub execution_ms: Option<i64>,
    /// Parts of the graph that ComfyUI refused while it ran the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_errors: Option<serde_json::Value>,
}
