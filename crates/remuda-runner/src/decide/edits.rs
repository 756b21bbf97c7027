//! The two textual edits that a workflow gets on its way to ComfyUI; every other byte passes as it came.

use comfyui::Workflow;
use comfyui::workflow::EditError;
use remuda_core::{Sha256, TaskId};
use remuda_preflight::FOLDER;
use serde_json::value::RawValue;

/// The longest name that a placed file gets from its own: with the hash in front it stays below every limit.
const LONGEST_NAME: usize = 100;

/// A file that was put into ComfyUI's input folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) node_id: String,
    pub(crate) input: String,
    /// As the graph must name it.
    pub(crate) name: String,
}

/// Literal `filename_prefix` values get a folder of the task's own in front, if it has one; inputs that name placed files
/// name them where they are. Linked and absent prefixes are left alone.
pub(crate) fn edit(
    workflow: &Workflow,
    folder_of: Option<TaskId>,
    placed: &[Placed],
) -> Result<Workflow, EditError> {
    let index = workflow.index();
    let mut edits = Vec::new();
    if let Some(task) = folder_of {
        for node in index.nodes() {
            // Of doubled ids only the last is run.
            if !index.node(node.id()).is_some_and(|last| std::ptr::eq(last, node)) {
                continue;
            }
            let Some(prefix) = index.input(node.id(), "filename_prefix") else { continue };
            let Some(prefix) = prefix.text() else { continue };
            edits.push((node.id(), "filename_prefix", text(&format!("{FOLDER}/{task}/{prefix}"))));
        }
    }
    edits.extend(placed.iter().map(|file| (file.node_id.as_str(), file.input.as_str(), text(&file.name))));
    workflow.with_inputs(edits)
}

fn text(text: &str) -> Box<RawValue> {
    // A text can always be written.
    serde_json::value::to_raw_value(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The name under which a file is placed: the same bytes have the same name for every task, other bytes another.
pub(crate) fn placed_name(sha256: &Sha256, filename: &str) -> String {
    let plain: String = filename
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' })
        .collect();
    // ComfyUI's /view refuses two dots wherever they stand.
    let mut plain = plain.trim_matches('.').to_owned();
    while plain.contains("..") {
        plain = plain.replace("..", "_");
    }
    let cut = plain.len().saturating_sub(LONGEST_NAME);
    let hash = sha256.to_string();
    match &plain[cut..] {
        "" => hash[..16].to_owned(),
        // The end of the name is kept, because ComfyUI's nodes go by the ending.
        name => format!("{}-{name}", &hash[..16]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> TaskId {
        "0190b6c1-0000-7000-8000-000000000001".parse().unwrap()
    }

    #[test]
    fn only_literal_prefixes_and_placed_inputs_change() {
        let text = r#"{ "1": {"class_type":"SaveImage", "inputs":{"images":["2",0],"filename_prefix": "a/b"}},
            "2": {"class_type":"LoadImage","inputs":{"image":"cat.png","seed":18446744073709551615}},
            "3": {"class_type":"SaveImage","inputs":{"images":["2",0],"filename_prefix":["4",0]}},
            "4": {"class_type":"Number","inputs":{"filename_prefix":1e-05}},
            "5": {"class_type":"SaveImage","inputs":{"images":["2",0]}}}"#;
        let workflow = Workflow::parse(text).unwrap();
        let placed = [Placed { node_id: "2".into(), input: "image".into(), name: "remuda/x-cat.png".into() }];
        let edited = edit(&workflow, Some(task()), &placed).unwrap();
        let expected = text
            .replace("\"a/b\"", "\"remuda/0190b6c1-0000-7000-8000-000000000001/a/b\"")
            .replace("\"cat.png\"", "\"remuda/x-cat.png\"");
        assert_eq!(edited.as_str(), expected);
        let untouched = edit(&workflow, None, &[]).unwrap();
        assert_eq!(untouched.as_str(), text, "where paths are somebody's contract nothing changes");
    }

    #[test]
    fn an_input_that_is_not_there_is_an_error() {
        let workflow =
            Workflow::parse(r#"{"1": {"class_type": "A", "inputs": {"image": ["2", 0]}}}"#).unwrap();
        let placed = |node: &str| [Placed { node_id: node.into(), input: "image".into(), name: "x".into() }];
        assert!(edit(&workflow, Some(task()), &placed("9")).is_err());
        assert!(edit(&workflow, Some(task()), &placed("1")).is_err(), "a linked input names no file");
    }

    #[test]
    fn placed_names_are_harmless_and_keep_their_ending() {
        let hash = Sha256::of(b"x");
        let name = |filename: &str| placed_name(&hash, filename);
        assert_eq!(name("cat.png"), "2d711642b726b044-cat.png");
        assert_eq!(name("../../etc/pass..wd"), "2d711642b726b044-_.._etc_pass_wd".replace("..", "_"));
        assert_eq!(name("näme (1).webp"), "2d711642b726b044-n_me__1_.webp");
        assert_eq!(name("...."), "2d711642b726b044");
        let long = name(&format!("{}.safetensors", "x".repeat(500)));
        assert!(long.len() < 130 && long.ends_with(".safetensors"), "{long}");
        assert_ne!(placed_name(&Sha256::of(b"y"), "cat.png"), name("cat.png"));
    }
}
