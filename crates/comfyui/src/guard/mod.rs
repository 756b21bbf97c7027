//! A check that can be asked before submission.
//!
//! ComfyUI refuses some prompts without saying why, accepts some that cannot work, and does not survive a few: a
//! node without `inputs` ends its only worker thread, and every later prompt waits for ever. [`check`] finds all of
//! these in the graph alone, and with the server's own node descriptions ([`ObjectInfo`]) also what validation
//! would refuse: unknown classes, missing models, wrong types. [`check_text`] does the same for a text that may not
//! be a workflow at all, [`check_request`] for a whole body of `POST /prompt`.
//!
//! A node class may bring its own validation that object_info says nothing about. Such a class can refuse what
//! this check lets pass, and, rarely, accept a value outside its declared list or range.
//!
//! ```
//! use comfyui::guard::{Kind, Options, check};
//! use comfyui::object_info::ObjectInfo;
//! use comfyui::workflow::Workflow;
//!
//! let here = ObjectInfo::from_slice(
//!     br#"{"CheckpointLoaderSimple": {
//!            "input": {"required": {"ckpt_name": [["sd15.safetensors", "sdxl.safetensors"]]}},
//!            "output": ["MODEL", "CLIP", "VAE"]},
//!          "SaveCheckpoint": {"input": {"required": {"model": ["MODEL"]}}, "output_node": true}}"#,
//! )?;
//! let workflow = Workflow::parse(
//!     r#"{"4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sdxl_base.safetensors"}},
//!         "5": {"class_type": "SaveCheckpoint", "inputs": {"model": ["4", 0]}}}"#,
//! )?;
//! let report = check(&workflow, Some(&here), &Options::default());
//! assert!(!report.may_be_sent());
//! assert_eq!(
//!     report.to_string(),
//!     "node 4 (CheckpointLoaderSimple) input ckpt_name: there is no model \"sdxl_base.safetensors\" here; the \
//!      folder checkpoints has \"sdxl.safetensors\", \"sd15.safetensors\""
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod expand;
mod findings;
mod graph;
mod inputs;
mod known;
mod links;
mod nearest;
mod report;
mod request;
mod structure;
#[cfg(test)]
mod tests;
mod types;
mod values;

use crate::object_info::ObjectInfo;
use crate::workflow::Workflow;

pub use report::{Kind, Noticed, Problem, Report, Severity};
pub use request::{
    check_client_id, check_extra_data, check_number, check_prompt_id, check_request, check_targets,
    check_text,
};

/// What a check should go by.
///
/// ```
/// use comfyui::guard::Options;
///
/// let only_the_preview = Options { targets: Some(vec!["9".to_owned()]), ..Options::default() };
/// assert!(only_the_preview.check_files);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The output nodes to run (`partial_execution_targets`); all of them when None.
    pub targets: Option<Vec<String>>,
    /// Whether a file that the server does not list is a problem. Set it to false when files are uploaded only
    /// after the check, or after the node descriptions were fetched.
    pub check_files: bool,
    /// How many names of what there is a finding lists.
    pub listed: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { targets: None, check_files: true, listed: 10 }
    }
}

/// Checks a workflow, against what a server says about its nodes where that is known.
///
/// Takes time in proportion to the size of the workflow, whatever its shape.
pub fn check(workflow: &Workflow, info: Option<&ObjectInfo>, options: &Options) -> Report {
    structure::check(workflow, info, options).sorted()
}

/// Checks a workflow against several servers, to see which of them could run it.
///
/// ```
/// use comfyui::guard::{Options, check_all};
/// use comfyui::object_info::ObjectInfo;
/// use comfyui::workflow::Workflow;
///
/// let plain = ObjectInfo::from_slice(br#"{"PreviewImage": {"output_node": true}}"#)?;
/// let video = ObjectInfo::from_slice(br#"{"VHS_VideoCombine": {"output_node": true}}"#)?;
/// let workflow = Workflow::parse(r#"{"1": {"class_type": "VHS_VideoCombine", "inputs": {}}}"#)?;
/// let reports = check_all(&workflow, [("plain", &plain), ("video", &video)], &Options::default());
/// let able: Vec<_> = reports.iter().filter(|(_, report)| report.may_be_sent()).map(|(name, _)| *name).collect();
/// assert_eq!(able, ["video"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check_all<'a, N>(
    workflow: &Workflow,
    servers: impl IntoIterator<Item = (N, &'a ObjectInfo)>,
    options: &Options,
) -> Vec<(N, Report)> {
    servers.into_iter().map(|(name, info)| (name, check(workflow, Some(info), options))).collect()
}
