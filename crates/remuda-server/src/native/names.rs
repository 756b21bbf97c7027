//! What tasks and files are called towards clients that speak ComfyUI.
//!
//! A prompt has the id that its client chose, else the task's. A file is in a folder of its task's own, so that its name
//! alone says where it is, whichever worker made it.

use remuda_core::{JsonText, OutputFile, Task, TaskId, TaskResult};
use serde_json::Value;

/// What the client calls the task.
pub(crate) fn prompt_id(task: &Task) -> String {
    let external = task.origin.as_ref().and_then(|origin| origin.external_id.clone());
    external.unwrap_or_else(|| task.id.to_string())
}

/// The key under which a submission with a `prompt_id` of the client's own is known.
pub(crate) fn idempotency_key(prompt_id: &str) -> String {
    format!("comfyui:{prompt_id}")
}

/// Whether a text can be a `prompt_id` of a client's own.
pub(crate) fn is_prompt_id(text: &str) -> bool {
    const MOST: usize = 200;
    !text.is_empty() && text.len() <= MOST && !text.chars().any(char::is_control)
}

/// The folder under which a file of a task is shown.
pub(crate) fn shown_subfolder(task: TaskId, subfolder: &str) -> String {
    OutputFile::shown(task, subfolder)
}

/// The task whose folder this is in.
pub(crate) fn task_of(subfolder: &str) -> Option<TaskId> {
    OutputFile::task_of(subfolder)
}

/// `outputs` as a client sees them: every file in the folder of its task.
pub(crate) fn shown_outputs(task: TaskId, outputs: &JsonText) -> Value {
    shown(task, outputs.read())
}

/// The same for a part of them.
pub(crate) fn shown(task: TaskId, mut outputs: Value) -> Value {
    show(task, &mut outputs);
    outputs
}

/// In place: values are large, and two copies of them twice as large.
fn show(task: TaskId, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(|value| show(task, value));
            if fields.get("filename").is_some_and(Value::is_string)
                && fields.get("type").and_then(Value::as_str) != Some("input")
            {
                let subfolder = fields.get("subfolder").and_then(Value::as_str).unwrap_or_default();
                let shown = shown_subfolder(task, subfolder);
                fields.insert("subfolder".to_owned(), shown.into());
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| show(task, value)),
        _ => {}
    }
}

/// The file of a result that is shown under these names.
pub(crate) fn find_file<'a>(
    task: TaskId,
    result: &'a TaskResult,
    filename: &str,
    subfolder: &str,
    file_type: &str,
) -> Option<&'a OutputFile> {
    result.find(task, filename, subfolder, file_type)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_file_is_shown_in_the_folder_of_its_task() {
        let task = TaskId::new();
        let own = format!("remuda/{task}");
        for (at_the_worker, shown) in [
            (String::new(), own.clone()),
            (own.clone(), own.clone()),
            (format!("{own}/a/b"), format!("{own}/a/b")),
            ("other".to_owned(), format!("{own}/other")),
            (format!("{own}x"), format!("{own}/{own}x")),
        ] {
            assert_eq!(shown_subfolder(task, &at_the_worker), shown);
            assert_eq!(task_of(&shown), Some(task));
        }
        assert_eq!(task_of("remuda"), None);
        assert_eq!(task_of("remuda/x"), None);
        let outputs = json!({"9": {"images": [{"filename": "a.png", "subfolder": "", "type": "temp"}],
            "text": ["x"], "seen": [{"filename": "b.png", "subfolder": "", "type": "input"}]}});
        let shown = shown_outputs(task, &outputs.into());
        assert_eq!(shown["9"]["images"][0]["subfolder"], own.as_str());
        assert_eq!(shown["9"]["seen"][0]["subfolder"], "");
        assert_eq!(shown["9"]["text"], json!(["x"]));
    }
}
