//! What a task may bring along besides its graph: files that the graph reads, and a place for what it leaves.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use remuda_core::{Placement, Sha256};
use remuda_files::FileKey;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

/// A file that ComfyUI must have before the graph is sent, and the input that gets its name there. It is in the journal
/// with its bytes, so that a restart finds them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedFile {
    /// The node.
    pub node_id: String,
    /// Its input, a literal.
    pub input: String,
    /// What the file is called.
    pub filename: String,
    /// What is in it.
    #[serde(rename = "base64", serialize_with = "write_bytes", deserialize_with = "read_bytes")]
    pub bytes: Bytes,
}

impl AttachedFile {
    /// As runners know it.
    pub(super) fn placement(&self) -> Placement {
        Placement {
            node_id: self.node_id.clone(),
            input: self.input.clone(),
            sha256: Sha256::of(&self.bytes),
            key: String::new(),
            filename: self.filename.clone(),
        }
    }

    pub(super) fn is_for(&self, placement: &Placement) -> bool {
        self.node_id == placement.node_id && self.input == placement.input
    }
}

impl fmt::Debug for AttachedFile {
    /// Without the bytes: logs are read by people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedFile")
            .field("node_id", &self.node_id)
            .field("input", &self.input)
            .field("filename", &self.filename)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

fn write_bytes<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn read_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD.decode(text).map(Bytes::from).map_err(de::Error::custom)
}

/// The longest name of a folder: with the prompt's id and the name of a file behind it, it stays a key.
const LONGEST: usize = 400;

/// Folders that the file store uses itself.
const TAKEN: [&str; 3] = ["outputs", "assets", "tmp"];

/// A folder below the sink, for the outputs of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SinkFolder(FileKey);

impl SinkFolder {
    /// From a path that somebody else wrote: relative, without steps upwards, of characters that every file system knows.
    ///
    /// # Errors
    /// With the reason, for people.
    pub fn parse(path: &str) -> Result<Self, String> {
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.starts_with('/') {
            return Err(
                "it is not below the place where files are delivered to: it begins with a slash".to_owned()
            );
        }
        if path.split('/').any(|segment| segment == "..") {
            return Err(
                "it is not below the place where files are delivered to: `..` leads out of it".to_owned()
            );
        }
        if path.len() > LONGEST {
            return Err(format!("it is longer than {LONGEST} bytes"));
        }
        let first = path.split('/').next().unwrap_or_default();
        if TAKEN.iter().any(|taken| first.eq_ignore_ascii_case(taken)) {
            return Err(format!("{} are used by the worker itself", TAKEN.join(", ")));
        }
        match FileKey::parse(path) {
            Ok(key) => Ok(Self(key)),
            Err(remuda_files::Error::BadKey { reason, .. }) => Err(reason.to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The folder of everything that a prompt brought forth: no other prompt has it.
    pub(super) fn outputs_of(&self, prompt: Uuid) -> remuda_files::Result<FileKey> {
        self.0.join_name(&prompt.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_back_from_the_journal_as_it_was() {
        let file = AttachedFile {
            node_id: "10".into(),
            input: "image".into(),
            filename: "cat.png".into(),
            bytes: Bytes::from_static(b"\x89PNG\0\xff"),
        };
        let text = serde_json::to_string(&file).unwrap();
        assert_eq!(serde_json::from_str::<AttachedFile>(&text).unwrap(), file);
        let placement = file.placement();
        assert!(file.is_for(&placement));
        assert_eq!(placement.sha256, Sha256::of(b"\x89PNG\0\xff"));
        assert!(!format!("{file:?}").contains("PNG"));
    }

    #[test]
    fn a_folder_stays_below_the_sink() {
        let folder = SinkFolder::parse("customer-7/run-3/").unwrap();
        let id = Uuid::nil();
        assert_eq!(folder.outputs_of(id).unwrap().as_str(), format!("customer-7/run-3/{id}"));
        let text = serde_json::to_string(&folder).unwrap();
        assert_eq!(serde_json::from_str::<SinkFolder>(&text).unwrap(), folder);
        let long = "x/".repeat(300);
        for wrong in [
            "",
            "/etc",
            "..",
            "a/../../b",
            "a/..",
            "a//b",
            "./a",
            "a\\..\\b",
            "C:/x",
            "tmp/x",
            "Outputs",
            &long,
        ] {
            assert!(SinkFolder::parse(wrong).is_err(), "{wrong}");
        }
        assert!(serde_json::from_str::<SinkFolder>("\"../a\"").is_err());
    }

    #[test]
    fn the_longest_folder_leaves_room_for_names() {
        let folder = SinkFolder::parse(&["x".repeat(199), "y".repeat(200)].join("/")).unwrap();
        let outputs = folder.outputs_of(Uuid::nil()).unwrap();
        assert!(outputs.join_name(&"z".repeat(300)).is_ok());
    }
}
