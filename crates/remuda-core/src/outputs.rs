//! What a task left.

use serde::{Deserialize, Serialize};

use crate::{JsonText, Sha256, TaskId};

/// The folder that holds one folder for every task.
const ROOT: &str = "remuda";

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

impl OutputFile {
    /// The folder under which it is shown to clients that know files by their names at ComfyUI: one of its task's own, so
    /// that the name alone says where the file is, whichever worker made it.
    pub fn shown_subfolder(&self, task: TaskId) -> String {
        Self::shown(task, &self.subfolder)
    }

    /// … for a file of the task in this folder.
    pub fn shown(task: TaskId, subfolder: &str) -> String {
        let own = format!("{ROOT}/{task}");
        let inside =
            subfolder == own || subfolder.strip_prefix(&own).is_some_and(|rest| rest.starts_with('/'));
        match subfolder.trim_matches('/') {
            _ if inside => subfolder.to_owned(),
            "" => own,
            other => format!("{own}/{other}"),
        }
    }

    /// The task in whose folder a file is shown.
    pub fn task_of(subfolder: &str) -> Option<TaskId> {
        let rest = subfolder.strip_prefix(ROOT)?.strip_prefix('/')?;
        rest.split('/').next()?.parse().ok()
    }
}

/// What a task left: a completed one all of it, a failed one what was done before it failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Every file, in the order of the history entry.
    pub files: Vec<OutputFile>,
    /// `outputs` of ComfyUI's history entry, as they were.
    pub outputs: JsonText,
    /// From the first node to the last, as ComfyUI says.
    pub execution_ms: Option<i64>,
    /// Parts of the graph that ComfyUI refused while it ran the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_errors: Option<JsonText>,
}

impl TaskResult {
    /// The file that is shown under these names.
    pub fn find(
        &self,
        task: TaskId,
        filename: &str,
        subfolder: &str,
        file_type: &str,
    ) -> Option<&OutputFile> {
        self.files.iter().find(|file| {
            file.filename == filename
                && file.file_type == file_type
                && file.shown_subfolder(task) == subfolder.trim_end_matches('/')
        })
    }
}
