//! What a prompt produced: files, texts and data, node by node.
//!
//! Nodes choose the keys of their results freely, and the keys mislead: videos of ComfyUI's own nodes stand under
//! `images`, still pictures of others under `gifs`. So every key is read, everything with a file name is a file,
//! and what a file is follows from its ending.

mod limits;
mod media;

use std::borrow::Cow;
use std::fmt;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::workflow::{entries, text};

pub use limits::{Limit, Limits, TooMany};
pub use media::MediaKind;

/// The results of all nodes of a prompt, in the order in which ComfyUI reports them.
///
/// ```
/// use comfyui::outputs::{MediaKind, Outputs};
/// use serde_json::value::RawValue;
///
/// let from_history = RawValue::from_string(
///     r#"{"9": {"images": [{"filename": "a_00001_.mp4", "subfolder": "job", "type": "output"}], "animated": [true]},
///         "12": {"text": ["a fox"]}}"#
///         .to_owned(),
/// )?;
/// let outputs = Outputs::from_history(&from_history);
/// let file = outputs.files().next().unwrap();
/// assert_eq!((file.node_id.as_str(), file.kind, file.mime), ("9", MediaKind::Video, "video/mp4"));
/// assert_eq!(outputs.texts().collect::<Vec<_>>(), ["a fox"]);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Outputs {
    /// One entry per node that reported something.
    pub nodes: Vec<NodeOutput>,
}

/// The results of one node.
///
/// ```
/// use comfyui::outputs::{NodeOutput, Output};
/// use serde_json::value::RawValue;
///
/// // As in the `output` of an `executed` message.
/// let ui = RawValue::from_string(r#"{"text": ["one", "two"], "count": [2]}"#.to_owned())?;
/// let node = NodeOutput::from_ui("7", &ui);
/// assert_eq!(node.outputs.len(), 3);
/// assert!(matches!(&node.outputs[2], Output::Data { key, raw } if key == "count" && raw.get() == "2"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct NodeOutput {
    /// The node, by the id it has in the workflow; nodes made at run time have ids such as `1.0.0.3`.
    pub node_id: String,
    /// Its results in the order reported.
    pub outputs: Vec<Output>,
}

/// One result.
///
/// ```
/// use comfyui::outputs::{NodeOutput, Output};
/// use serde_json::value::RawValue;
///
/// let ui = RawValue::from_string(r#"{"images": [{"filename": "a.png"}], "note": ["done"]}"#.to_owned())?;
/// let node = NodeOutput::from_ui("7", &ui);
/// assert!(matches!(node.outputs.as_slice(), [Output::File(_), Output::Text { .. }]));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Output {
    /// A file that `GET /view` delivers.
    File(OutputFile),
    /// A text.
    Text {
        /// The key under which the node reported it.
        key: String,
        /// The text.
        text: String,
    },
    /// Anything else.
    Data {
        /// The key under which the node reported it.
        key: String,
        /// The value as it was reported.
        raw: Box<RawValue>,
    },
}

/// A file that a node wrote.
///
/// ```
/// use comfyui::outputs::{FileType, MediaKind, NodeOutput, Output};
/// use serde_json::value::RawValue;
///
/// let ui = RawValue::from_string(
///     r#"{"gifs": [{"filename": "x-audio.mp4", "subfolder": "", "type": "temp", "format": "video/h264-mp4"}]}"#.to_owned(),
/// )?;
/// let node = NodeOutput::from_ui("7", &ui);
/// let Output::File(file) = &node.outputs[0] else { panic!("a file name makes it a file") };
/// assert_eq!((file.kind, &file.file_type), (MediaKind::Video, &FileType::Temp));
/// assert_eq!(file.extra["format"], "video/h264-mp4");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OutputFile {
    /// The node that wrote it.
    pub node_id: String,
    /// The key under which the node reported it: `images`, `gifs`, `audio`, …
    pub key: String,
    /// Its name as reported.
    pub filename: String,
    /// The folder below the folder of its type; empty for that folder itself.
    pub subfolder: String,
    /// Which of ComfyUI's folders it lies in.
    pub file_type: FileType,
    /// What it is.
    pub kind: MediaKind,
    /// Its media type, by the ending of its name.
    pub mime: &'static str,
    /// Whether the node said that it is animated; also true for videos that a node reports so.
    pub animated: bool,
    /// Everything else that the node said about it, such as `format`, `frame_rate` or `fullpath`.
    pub extra: Map<String, Value>,
}

/// Which of ComfyUI's folders a file lies in.
///
/// ```
/// use comfyui::outputs::FileType;
///
/// assert_eq!(FileType::from("temp"), FileType::Temp);
/// assert_eq!(FileType::from("elsewhere").as_str(), "elsewhere");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum FileType {
    /// The output folder, also where the node does not say.
    #[default]
    Output,
    /// The temporary folder, which is emptied when the server starts or stops.
    Temp,
    /// The input folder.
    Input,
    /// Another word, which `GET /view` will not know.
    Other(String),
}

impl Outputs {
    /// Reads `outputs` of a history entry. Whatever does not look like outputs is read as none.
    pub fn from_history(outputs: &RawValue) -> Self {
        Self::from_history_within(outputs, &Limits::NONE).unwrap_or_default()
    }

    /// As [`Outputs::from_history`], for a server that may be broken or hostile. What is beyond the limits is not read.
    ///
    /// # Errors
    ///
    /// [`TooMany`] says of what there is too much.
    pub fn from_history_within(outputs: &RawValue, limits: &Limits) -> Result<Self, TooMany> {
        let nodes = entries(outputs.get()).ok().flatten().unwrap_or_default();
        let mut room = limits::Room::new(limits);
        let read = |(id, ui): (Cow<'_, str>, &RawValue)| NodeOutput::read(&id, ui, &mut room);
        Ok(Self { nodes: nodes.into_iter().map(read).collect::<Result<_, _>>()? })
    }

    /// The files of all nodes.
    pub fn files(&self) -> impl Iterator<Item = &OutputFile> {
        self.nodes.iter().flat_map(|node| &node.outputs).filter_map(|output| match output {
            Output::File(file) => Some(file),
            _ => None,
        })
    }

    /// The texts of all nodes.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().flat_map(|node| &node.outputs).filter_map(|output| match output {
            Output::Text { text, .. } => Some(text.as_str()),
            _ => None,
        })
    }

    /// Whether no node reported anything. A prompt may succeed so.
    pub fn is_empty(&self) -> bool {
        self.nodes.iter().all(|node| node.outputs.is_empty())
    }
}

impl NodeOutput {
    /// The files among the results.
    pub fn files(&self) -> impl Iterator<Item = &OutputFile> {
        self.outputs.iter().filter_map(|output| match output {
            Output::File(file) => Some(file),
            _ => None,
        })
    }

    /// Reads the `ui` of one node: an object of lists in the history and in `executed` messages, null for a cached
    /// node without any.
    ///
    /// A list of truth values under `animated` says which of the files are animated and is no result of its own.
    pub fn from_ui(node_id: &str, ui: &RawValue) -> Self {
        let mut room = limits::Room::new(&Limits::NONE);
        let none = || Self { node_id: node_id.to_owned(), outputs: Vec::new() };
        Self::read(node_id, ui, &mut room).unwrap_or_else(|_| none())
    }

    fn read(node_id: &str, ui: &RawValue, room: &mut limits::Room<'_>) -> Result<Self, TooMany> {
        room.name(node_id)?;
        let fields = entries(ui.get()).ok().flatten().unwrap_or_default();
        let flags = |raw: &RawValue| serde_json::from_str::<Vec<bool>>(raw.get()).ok();
        let animated = fields.iter().find(|(key, _)| key == "animated").and_then(|(_, raw)| flags(raw));
        // Where the flags are not one for each file, one of them stands for all.
        let any_animated = animated.as_ref().is_some_and(|flags| flags.contains(&true));
        let mut outputs = Vec::new();
        for (key, raw) in &fields {
            if key == "animated" && animated.is_some() {
                continue;
            }
            room.name(key)?;
            let members = match serde_json::from_str::<Vec<&RawValue>>(raw.get()) {
                Ok(members) => members,
                // Not a list, though it should be one: a single result then.
                Err(_) => vec![*raw],
            };
            for (index, member) in members.iter().enumerate() {
                let animated = match &animated {
                    Some(flags) if flags.len() == members.len() => flags[index],
                    _ => any_animated,
                };
                room.output()?;
                let output = read(node_id, key, member, animated);
                if let Output::File(file) = &output {
                    room.file(file)?;
                }
                outputs.push(output);
            }
        }
        Ok(Self { node_id: node_id.to_owned(), outputs })
    }
}

fn read(node_id: &str, key: &str, raw: &RawValue, animated: bool) -> Output {
    if let Some(text) = text(raw) {
        return Output::Text { key: key.to_owned(), text: text.into_owned() };
    }
    match file(node_id, key, raw, animated) {
        Some(file) => Output::File(file),
        None => Output::Data { key: key.to_owned(), raw: raw.to_owned() },
    }
}

/// An object with a file name is a file, whatever the key.
fn file(node_id: &str, key: &str, raw: &RawValue, animated: bool) -> Option<OutputFile> {
    let fields = entries(raw.get()).ok().flatten()?;
    let word = |name: &str| fields.iter().rfind(|(key, _)| key == name).and_then(|(_, raw)| text(raw));
    let filename = word("filename").filter(|name| !name.is_empty())?.into_owned();
    let own = ["filename", "subfolder", "type"];
    let extra: Map<String, Value> = fields
        .iter()
        .filter(|(name, _)| !own.contains(&name.as_ref()))
        .filter_map(|(name, raw)| Some((name.clone().into_owned(), serde_json::from_str(raw.get()).ok()?)))
        .collect();
    let format = extra.get("format").and_then(Value::as_str);
    let mime = media::mime(&filename);
    Some(OutputFile {
        node_id: node_id.to_owned(),
        key: key.to_owned(),
        kind: media::kind(&filename, mime, key, format, animated),
        mime,
        subfolder: word("subfolder").unwrap_or_default().into_owned(),
        file_type: word("type").map(|word| FileType::from(word.as_ref())).unwrap_or_default(),
        animated,
        extra,
        filename,
    })
}

impl OutputFile {
    /// The parameters by which `GET /view` finds the file.
    ///
    /// A folder inside the name goes to `subfolder`: the server would cut it off and look in the wrong place.
    ///
    /// ```
    /// use comfyui::outputs::{NodeOutput, Output};
    /// use serde_json::value::RawValue;
    ///
    /// let ui = RawValue::from_string(r#"{"files": [{"filename": "b/c.png", "subfolder": "a"}]}"#.to_owned())?;
    /// let node = NodeOutput::from_ui("1", &ui);
    /// let Output::File(file) = &node.outputs[0] else { panic!("a file name makes it a file") };
    /// let query = file.view_query().map(|(name, value)| format!("{name}={value}"));
    /// assert_eq!(query, ["filename=c.png", "subfolder=a/b", "type=output"]);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn view_query(&self) -> [(&'static str, Cow<'_, str>); 3] {
        let (folder, name) = match self.filename.rsplit_once('/') {
            Some((folder, name)) => (folder.trim_start_matches('/'), name),
            None => ("", self.filename.as_str()),
        };
        let subfolder = match (self.subfolder.as_str(), folder) {
            (one, "") | ("", one) => Cow::Borrowed(one),
            (outer, inner) => Cow::Owned(format!("{}/{inner}", outer.trim_end_matches('/'))),
        };
        let file_type = Cow::Borrowed(self.file_type.as_str());
        [("filename", Cow::Borrowed(name)), ("subfolder", subfolder), ("type", file_type)]
    }
}

impl FileType {
    /// The word that ComfyUI uses.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Output => "output",
            Self::Temp => "temp",
            Self::Input => "input",
            Self::Other(word) => word,
        }
    }
}

impl From<&str> for FileType {
    fn from(word: &str) -> Self {
        match word {
            "output" => Self::Output,
            "temp" => Self::Temp,
            "input" => Self::Input,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::arbitrary;

    fn raw(value: &Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(value).unwrap()
    }

    fn node(ui: Value) -> Vec<Output> {
        NodeOutput::from_ui("1", &raw(&ui)).outputs
    }

    #[test]
    fn nodes_and_results_keep_their_order() {
        let outputs = Outputs::from_history(&raw(&json!({
            "9": {"zebra": [{"filename": "z.png"}], "audio": [{"filename": "a.flac"}]},
            "10": {},
            "1": {"images": [{"filename": "b.png"}, {"filename": "a.png"}]},
        })));
        let names: Vec<_> =
            outputs.files().map(|file| (file.node_id.as_str(), file.filename.as_str())).collect();
        assert_eq!(names, [("9", "z.png"), ("9", "a.flac"), ("1", "b.png"), ("1", "a.png")]);
        assert_eq!(outputs.nodes[1].node_id, "10");
        assert!(!outputs.is_empty());
    }

    #[test]
    fn odd_results_are_data_and_nothing_is_lost() {
        let outputs = node(json!({
            "text": [null, 1, true, {"deep": [1]}], "files": ["a/b.png"], "one": {"filename": "x.png"}, "n": 5,
            "nameless": [{"filename": "", "type": "output"}, {"filename": 7}], "animated": "yes",
        }));
        let shown: Vec<_> = outputs
            .iter()
            .map(|output| match output {
                Output::File(file) => format!("{}: file {}", file.key, file.filename),
                Output::Text { key, text } => format!("{key}: text {text}"),
                Output::Data { key, raw } => format!("{key}: {raw}"),
            })
            .collect();
        assert_eq!(
            shown,
            [
                "text: null",
                "text: 1",
                "text: true",
                "text: {\"deep\":[1]}",
                "files: text a/b.png",
                "one: file x.png",
                "n: 5",
                "nameless: {\"filename\":\"\",\"type\":\"output\"}",
                "nameless: {\"filename\":7}",
                "animated: text yes",
            ]
        );
    }

    #[test]
    fn animation_is_told_per_file_or_for_all() {
        let animated = |flags: Value| {
            let images = json!([{"filename": "a.png"}, {"filename": "b.png"}]);
            let outputs = node(json!({"images": images, "animated": flags}));
            outputs
                .iter()
                .map(|output| matches!(output, Output::File(file) if file.animated))
                .collect::<Vec<_>>()
        };
        assert_eq!(animated(json!([true])), [true, true]);
        assert_eq!(animated(json!([false, true])), [false, true]);
        assert_eq!(animated(json!([false])), [false, false]);
    }

    const WORDS: &[&str] = &[
        "images",
        "gifs",
        "text",
        "animated",
        "filename",
        "subfolder",
        "type",
        "format",
        "a.png",
        "b/c.mp4",
        "output",
    ];

    proptest! {
        #[test]
        fn any_json_is_read(value in arbitrary::json(WORDS)) {
            let all = Outputs::from_history(&raw(&value));
            for file in all.files() {
                let [(_, name), ..] = file.view_query();
                prop_assert!(!name.contains('/'));
            }
            NodeOutput::from_ui("1", &raw(&value));
            Outputs::from_history(&raw(&json!({"1": value.clone(), "2": {"images": [value]}})));
        }
    }
}
