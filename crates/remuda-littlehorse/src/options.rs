//! The second input of the task with options: a time limit, files for the graph, a folder for its outputs.

use std::collections::HashSet;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use comfyui::Workflow;
use littlehorse::{Ending, Input, Value};
use remuda_runner::source::foreign::{AttachedFile, SinkFolder};
use serde_json::value::RawValue;
use serde_json::{Map, json};

/// The name of the exception of a folder that cannot be used.
pub(crate) const FOLDER_REFUSED: &str = "comfyui-folder-refused";

/// The longest time limit, in seconds.
const LONGEST_TIMEOUT: f64 = 31_536_000.0;

/// How many files may come with one task.
const MOST_FILES: usize = 64;

/// The longest name of a file, in bytes.
const LONGEST_NAME: usize = 200;

/// With or without its padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What stands in the options.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskOptions {
    pub(crate) timeout_s: Option<u32>,
    pub(crate) files: Vec<AttachedFile>,
    pub(crate) folder: Option<SinkFolder>,
    /// As they came, if they did: other options are other work.
    pub(crate) text: Option<String>,
}

/// Reads them; or how the task ends, because they make no sense. `sink`: files are delivered somewhere.
pub(crate) fn read(input: &Input, workflow: &RawValue, sink: bool) -> Result<TaskOptions, Box<Ending>> {
    let text = match &input.value {
        Value::Null => return Ok(TaskOptions::default()),
        Value::JsonObj(text) | Value::Str(text) => text,
        _ => return Err(bad(input, "options are a JSON object, or the text of one".to_owned())),
    };
    let options: Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|error| bad(input, format!("no JSON object: {error}")))?;
    known(&options, "", &["timeout_s", "files", "folder"]).map_err(|reason| bad(input, reason))?;
    let timeout_s = timeout(&options).map_err(|reason| bad(input, reason))?;
    let files = files(&options, workflow).map_err(|reason| bad(input, reason))?;
    let folder = match given(&options, "folder") {
        None => None,
        Some(serde_json::Value::String(path)) => Some(folder(path, sink, input.masked)?),
        Some(_) => return Err(bad(input, "folder is not text".to_owned())),
    };
    Ok(TaskOptions { timeout_s, files, folder, text: Some(text.clone()) })
}

fn bad(input: &Input, reason: String) -> Box<Ending> {
    // What is masked is not to be seen anywhere, not even a piece of it in an error.
    let reason = if input.masked { "they make no sense (the value is masked)".to_owned() } else { reason };
    Box::new(Ending::BadInput { message: format!("input `{}`: {reason}", input.name) })
}

/// A member that is there, and not null.
fn given<'a>(of: &'a Map<String, serde_json::Value>, name: &str) -> Option<&'a serde_json::Value> {
    of.get(name).filter(|value| !value.is_null())
}

/// A misspelt option must not be left out silently.
fn known(of: &Map<String, serde_json::Value>, at: &str, names: &[&str]) -> Result<(), String> {
    match of.keys().find(|key| !names.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let key: String = key.chars().take(80).collect();
            Err(format!("`{at}{key}` is not known; there are {}", names.join(", ")))
        }
    }
}

fn timeout(options: &Map<String, serde_json::Value>) -> Result<Option<u32>, String> {
    let Some(value) = given(options, "timeout_s") else { return Ok(None) };
    match value.as_f64() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in the range")]
        Some(seconds) if seconds > 0.0 && seconds <= LONGEST_TIMEOUT => Ok(Some(seconds.ceil() as u32)),
        _ => Err(format!("timeout_s is no number of seconds above 0, up to {LONGEST_TIMEOUT}")),
    }
}

fn files(options: &Map<String, serde_json::Value>, workflow: &RawValue) -> Result<Vec<AttachedFile>, String> {
    let list = match given(options, "files") {
        None => return Ok(Vec::new()),
        Some(serde_json::Value::Array(list)) => list,
        Some(_) => return Err("files is no list".to_owned()),
    };
    if list.len() > MOST_FILES {
        return Err(format!("there are {} files, and {MOST_FILES} are allowed", list.len()));
    }
    let workflow = Workflow::from_raw(workflow.to_owned()).map_err(|error| error.to_string())?;
    let index = workflow.index();
    let mut files: Vec<AttachedFile> = Vec::with_capacity(list.len());
    let mut taken = HashSet::new();
    for (n, entry) in list.iter().enumerate() {
        let file = file(entry, n)?;
        if !taken.insert((file.node_id.clone(), file.input.clone())) {
            return Err(format!(
                "files[{n}]: input {} of node {} has a file already",
                file.input, file.node_id
            ));
        }
        // What the graph has no place for is told now, and not after everything was placed.
        index.replaceable(&file.node_id, &file.input).map_err(|error| format!("files[{n}]: {error}"))?;
        files.push(file);
    }
    Ok(files)
}

fn file(entry: &serde_json::Value, n: usize) -> Result<AttachedFile, String> {
    let Some(entry) = entry.as_object() else { return Err(format!("files[{n}] is no object")) };
    known(entry, &format!("files[{n}]."), &["node_id", "input", "filename", "base64"])?;
    let text = |name: &str| match given(entry, name) {
        Some(serde_json::Value::String(text)) if !text.is_empty() => Ok(text.as_str()),
        Some(serde_json::Value::String(_)) => Err(format!("files[{n}].{name} is empty")),
        Some(_) => Err(format!("files[{n}].{name} is not text")),
        None => Err(format!("files[{n}].{name} is missing")),
    };
    let filename = text("filename")?;
    if filename.contains(['/', '\\']) || filename.len() > LONGEST_NAME {
        return Err(format!(
            "files[{n}].filename is a name without folders, of at most {LONGEST_NAME} bytes"
        ));
    }
    let encoded = text("base64")?;
    // As browsers write it.
    let encoded = match encoded.strip_prefix("data:") {
        Some(url) => url
            .split_once(";base64,")
            .map(|(_, encoded)| encoded)
            .ok_or_else(|| format!("files[{n}].base64 is a data URL without base64"))?,
        None => encoded,
    };
    let bytes = BASE64.decode(encoded).map_err(|error| format!("files[{n}].base64: {error}"))?;
    if bytes.is_empty() {
        return Err(format!("files[{n}].base64 is empty"));
    }
    Ok(AttachedFile {
        node_id: text("node_id")?.to_owned(),
        input: text("input")?.to_owned(),
        filename: filename.to_owned(),
        bytes: bytes.into(),
    })
}

/// A folder that cannot be used is a matter for the workflow's people, who may handle it by its name.
fn folder(path: &str, sink: bool, masked: bool) -> Result<SinkFolder, Box<Ending>> {
    let found = if sink {
        SinkFolder::parse(path)
    } else {
        Err("this worker delivers no files: outputs stay where ComfyUI writes them (set --files, or leave `folder` out)"
            .to_owned())
    };
    found.map_err(|reason| {
        let path = if masked { "(masked)".to_owned() } else { path.chars().take(200).collect() };
        let content = json!({ "folder": path, "reason": reason });
        Box::new(Ending::Exception {
            name: FOLDER_REFUSED.to_owned(),
            message: format!("folder `{path}`: {reason}"),
            content: Value::JsonObj(content.to_string()),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = r#"{"10": {"class_type": "LoadImage", "inputs": {"image": "x.png"}},
        "11": {"class_type": "SaveImage", "inputs": {"images": ["10", 0]}}}"#;

    fn input(value: Value) -> Input {
        Input { name: "options".to_owned(), value, masked: false }
    }

    fn of(input: &Input, sink: bool) -> Result<TaskOptions, Box<Ending>> {
        read(input, &RawValue::from_string(GRAPH.to_owned()).unwrap(), sink)
    }

    fn options(value: &serde_json::Value) -> Result<TaskOptions, Box<Ending>> {
        of(&input(Value::JsonObj(value.to_string())), true)
    }

    fn file(change: &serde_json::Value) -> serde_json::Value {
        let mut file =
            json!({"node_id": "10", "input": "image", "filename": "cat.png", "base64": "iVBORw=="});
        for (key, value) in change.as_object().unwrap() {
            file[key] = value.clone();
        }
        json!({ "files": [file] })
    }

    fn refused(value: &serde_json::Value) -> String {
        match *options(value).unwrap_err() {
            Ending::BadInput { message } => message,
            other => panic!("{value}: {other:?}"),
        }
    }

    #[test]
    fn nothing_is_allowed() {
        assert_eq!(of(&input(Value::Null), false).unwrap(), TaskOptions::default());
        for nothing in
            [json!({}), json!({"timeout_s": null, "files": null, "folder": null}), json!({"files": []})]
        {
            let read = options(&nothing).unwrap();
            assert_eq!(read, TaskOptions { text: Some(nothing.to_string()), ..TaskOptions::default() });
        }
    }

    #[test]
    fn everything_is_read() {
        let mut all = file(&json!({}));
        all["timeout_s"] = json!(120);
        all["folder"] = json!("customer-7/run-3");
        let read = of(&input(Value::Str(all.to_string())), true).unwrap();
        assert_eq!(read.timeout_s, Some(120));
        assert_eq!(read.folder, Some(SinkFolder::parse("customer-7/run-3").unwrap()));
        let [file] = read.files.as_slice() else { panic!() };
        assert_eq!((&*file.node_id, &*file.input, &*file.filename), ("10", "image", "cat.png"));
        assert_eq!(&*file.bytes, b"\x89PNG");
    }

    #[test]
    fn bytes_may_come_as_browsers_write_them_and_without_padding() {
        for text in ["iVBORw", "data:image/png;base64,iVBORw=="] {
            assert_eq!(&*options(&file(&json!({ "base64": text }))).unwrap().files[0].bytes, b"\x89PNG");
        }
    }

    #[test]
    fn a_fraction_of_a_second_is_one() {
        // LittleHorse may write a number anew as a float.
        assert_eq!(options(&json!({"timeout_s": 120.0})).unwrap().timeout_s, Some(120));
        assert_eq!(options(&json!({"timeout_s": 0.2})).unwrap().timeout_s, Some(1));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (wrong, told) in [
            (json!({"timeout": 5}), "`timeout` is not known; there are timeout_s, files, folder"),
            (json!({"timeout_s": "5"}), "timeout_s is no number"),
            (json!({"timeout_s": 0}), "timeout_s is no number"),
            (json!({"timeout_s": -1}), "timeout_s is no number"),
            (json!({"files": {}}), "files is no list"),
            (json!({"files": ["x"]}), "files[0] is no object"),
            (json!({"folder": 7}), "folder is not text"),
            (file(&json!({"url": "x"})), "`files[0].url` is not known"),
            (file(&json!({"node_id": 10})), "files[0].node_id is not text"),
            (file(&json!({"node_id": "12"})), "files[0]: node 12: not in the workflow"),
            (file(&json!({"node_id": "11", "input": "images"})), "is linked to another node"),
            (file(&json!({"filename": null})), "files[0].filename is missing"),
            (file(&json!({"filename": "../cat.png"})), "files[0].filename is a name without folders"),
            (file(&json!({"base64": "%%"})), "files[0].base64: "),
            (file(&json!({"base64": "data:,x"})), "data URL without base64"),
            (file(&json!({"base64": ""})), "files[0].base64 is empty"),
        ] {
            let said = refused(&wrong);
            assert!(said.starts_with("input `options`: ") && said.contains(told), "{wrong}: {said}");
        }
        let mut twice = file(&json!({}));
        let again = twice["files"][0].clone();
        twice["files"].as_array_mut().unwrap().push(again);
        assert!(refused(&twice).contains("files[1]: input image of node 10 has a file already"));
        for value in [Value::Int(1), Value::JsonObj("[1]".into()), Value::JsonObj("{\"a\":".into())] {
            assert!(matches!(*of(&input(value), true).unwrap_err(), Ending::BadInput { .. }));
        }
    }

    #[test]
    fn a_folder_needs_a_sink_and_stays_in_it() {
        for (path, sink, told) in [
            ("a", false, "delivers no files"),
            ("../a", true, "leads out"),
            ("/a", true, "begins with a slash"),
        ] {
            let value = Value::JsonObj(json!({ "folder": path }).to_string());
            let Ending::Exception { name, message, .. } = *of(&input(value), sink).unwrap_err() else {
                panic!()
            };
            assert_eq!(name, FOLDER_REFUSED);
            assert!(message.contains(told), "{message}");
        }
    }

    #[test]
    fn a_masked_value_is_not_told() {
        for value in [json!({"hunter2": 1}), json!({"folder": "../hunter2"})] {
            let masked = Input { masked: true, ..input(Value::JsonObj(value.to_string())) };
            let (Ending::BadInput { message } | Ending::Exception { message, .. }) =
                *of(&masked, true).unwrap_err()
            else {
                panic!()
            };
            assert!(!message.contains("hunter2") && message.contains("masked"), "{message}");
        }
    }
}
