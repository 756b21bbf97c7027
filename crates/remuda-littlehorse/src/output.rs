//! What a task returns: where its files are.

use std::collections::HashSet;

use remuda_core::{OutputFile, TaskResult};
use serde::Serialize;
use uuid::Uuid;

/// Where the files of a task are, as those who read its result see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Places {
    /// They stay where ComfyUI wrote them: its output folder, `COMFYUI_OUTPUT_DIR`.
    Folder(String),
    /// They are delivered to a file store, below this path or `s3://bucket/prefix`.
    Sink(String),
}

/// The result: `{"prompt_id": …, "outputs": […]}`.
#[derive(Debug, Serialize)]
struct Output<'a> {
    prompt_id: Uuid,
    outputs: &'a [String],
}

/// The result as JSON text.
pub(crate) fn json(prompt_id: Uuid, outputs: &[String]) -> String {
    serde_json::to_string(&Output { prompt_id, outputs }).unwrap_or_default()
}

/// Why there is nothing to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Nothing {
    #[error(
        "the workflow ran and left no outputs: no node of it saves anything, or all of them were skipped"
    )]
    AtAll,
    #[error(
        "the workflow left only previews, which ComfyUI keeps in its temporary folder: save its results, or set a place \
         where they are delivered to"
    )]
    ThatStays,
}

/// Where every file of a result is, in the order of ComfyUI's history, each place once.
///
/// Previews count only where they were delivered, and only when there is nothing else.
pub(crate) fn outputs(result: &TaskResult, places: &Places) -> Result<Vec<String>, Nothing> {
    let saved: Vec<&OutputFile> = result.files.iter().filter(|file| file.file_type == "output").collect();
    let files = match places {
        _ if !saved.is_empty() => saved,
        Places::Sink(_) => result.files.iter().collect(),
        Places::Folder(_) if !result.files.is_empty() => return Err(Nothing::ThatStays),
        Places::Folder(_) => Vec::new(),
    };
    // A node that shows a text has left something, though no file.
    if files.is_empty() && result.outputs.is_empty() {
        return Err(Nothing::AtAll);
    }
    let mut paths: Vec<String> = Vec::with_capacity(files.len());
    let mut seen = HashSet::new();
    for file in files {
        let path = match places {
            Places::Folder(folder) => join(&[folder, &file.subfolder, &file.filename]),
            Places::Sink(base) => join(&[base, &file.key]),
        };
        if seen.insert(path.clone()) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Joins with slashes: the first part keeps those at its beginning, a root stays one.
fn join(parts: &[&str]) -> String {
    let mut path = parts.first().copied().unwrap_or_default().to_owned();
    for part in parts.iter().skip(1).map(|part| part.trim_matches('/')).filter(|part| !part.is_empty()) {
        if !path.ends_with('/') && !path.is_empty() {
            path.push('/');
        }
        path.push_str(part);
    }
    path
}

#[cfg(test)]
mod tests {
    use remuda_core::Sha256;
    use serde_json::json;

    use super::*;

    fn file(key: &str, subfolder: &str, filename: &str, file_type: &str, output: &str) -> OutputFile {
        OutputFile {
            n: 0,
            key: key.into(),
            filename: filename.into(),
            subfolder: subfolder.into(),
            node_id: "9".into(),
            output: output.into(),
            file_type: file_type.into(),
            mime: "image/png".into(),
            size: 0,
            sha256: Sha256([0; 32]),
        }
    }

    fn result(files: Vec<OutputFile>) -> TaskResult {
        let outputs = if files.is_empty() { json!({}) } else { json!({"9": {"images": []}}) };
        TaskResult { files, outputs: outputs.into(), ..TaskResult::default() }
    }

    #[test]
    fn paths_have_folder_subfolder_and_name() {
        let result = result(vec![
            file("", "", "a.png", "output", "images"),
            file("", "2026/11", "b.mp4", "output", "gifs"),
            file("", "", "preview.png", "temp", "images"),
            file("", "", "a.png", "output", "images"),
            file("", "audio", "c.flac", "output", "audio"),
        ]);
        let expected = ["/out/a.png", "/out/2026/11/b.mp4", "/out/audio/c.flac"];
        for folder in ["/out", "/out/"] {
            assert_eq!(outputs(&result, &Places::Folder(folder.into())).unwrap(), expected);
        }
        let root = outputs(&result, &Places::Folder("/".into())).unwrap();
        assert_eq!(root[0], "/a.png");
    }

    #[test]
    fn delivered_files_are_named_by_their_place() {
        let delivered = |kind| result(vec![file("outputs/p/0-a.png", "", "a.png", kind, "images")]);
        let sink = Places::Sink("s3://bucket/prefix".into());
        for kind in ["output", "temp"] {
            assert_eq!(outputs(&delivered(kind), &sink).unwrap(), ["s3://bucket/prefix/outputs/p/0-a.png"]);
        }
    }

    #[test]
    fn nothing_is_told_apart() {
        let folder = Places::Folder("/out".into());
        assert_eq!(outputs(&result(vec![]), &folder), Err(Nothing::AtAll));
        assert_eq!(outputs(&result(vec![]), &Places::Sink("/x".into())), Err(Nothing::AtAll));
        let previews = result(vec![file("", "", "a.png", "temp", "images")]);
        assert_eq!(outputs(&previews, &folder), Err(Nothing::ThatStays));
        let text = TaskResult { outputs: json!({"5": {"text": ["hello"]}}).into(), ..TaskResult::default() };
        assert_eq!(outputs(&text, &folder), Ok(vec![]), "a text is an output");
    }

    #[test]
    fn the_result_has_the_fields_of_the_contract() {
        let id = Uuid::nil();
        assert_eq!(
            json(id, &["/out/a.png".into()]),
            format!(r#"{{"prompt_id":"{id}","outputs":["/out/a.png"]}}"#)
        );
    }
}
