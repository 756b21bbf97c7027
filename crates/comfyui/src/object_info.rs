//! What a ComfyUI says about its nodes: `GET /object_info`.
//!
//! Nodes come from many hands, so reading is tolerant: classic and V3 descriptions, lists of choices with members
//! that are not texts, missing and unknown keys. A description that makes no sense costs that node its details,
//! never the whole answer.

mod models;
mod parse;

use std::borrow::Cow;
use std::fmt;

use indexmap::IndexMap;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::lenient;

pub use models::{has_model_ending, model_folder};

/// How many JSON values an answer may hold. A ComfyUI with 5,000 nodes and 3,000 models has about a million.
const MOST_VALUES: usize = 1_500_000;

/// All node classes of one ComfyUI, in its order.
///
/// ```
/// use comfyui::object_info::{InputKind, ObjectInfo};
///
/// let info = ObjectInfo::from_slice(
///     br#"{"EmptyLatentImage": {
///         "input": {"required": {"width": ["INT", {"default": 512, "min": 16, "max": 16384, "step": 8}]}},
///         "output": ["LATENT"], "output_node": false, "category": "latent"}}"#,
/// )?;
/// let node = info.get("EmptyLatentImage").unwrap();
/// assert_eq!(node.inputs[0].kind, InputKind::Int);
/// assert_eq!(node.outputs[0].kind, "LATENT");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectInfo {
    classes: IndexMap<String, NodeInfo>,
}

/// One node class.
///
/// ```
/// use comfyui::object_info::ObjectInfo;
///
/// let info = ObjectInfo::from_slice(br#"{"PreviewImage": {"output_node": true, "display_name": "Preview Image"}}"#)?;
/// let node = info.get("PreviewImage").unwrap();
/// assert!(node.output_node && node.inputs.is_empty());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct NodeInfo {
    /// The name by which workflows call the class.
    pub class: String,
    /// The name shown to people; the class name where there is none.
    pub display_name: String,
    /// The menu path, such as `image/upscaling`.
    pub category: String,
    /// Where the class comes from: `nodes`, `comfy_extras.…` or `custom_nodes.…`.
    pub python_module: String,
    /// Whether a graph may end here: only output nodes and what they need are run.
    pub output_node: bool,
    /// Marked as deprecated.
    pub deprecated: bool,
    /// Marked as experimental.
    pub experimental: bool,
    /// Calls a paid service elsewhere.
    pub api_node: bool,
    /// Required, optional and hidden inputs, in this order and each in the order of ComfyUI.
    pub inputs: Vec<InputSpec>,
    /// The outputs; a link names one by its index.
    pub outputs: Vec<OutputSpec>,
}

/// One input of a node class.
///
/// ```
/// use comfyui::object_info::{ObjectInfo, UploadKind};
///
/// let info = ObjectInfo::from_slice(
///     br#"{"LoadVideo": {"input": {"required": {"file": ["COMBO", {"options": ["a.mp4"], "video_upload": true}]}}}}"#,
/// )?;
/// let file = &info.get("LoadVideo").unwrap().inputs[0];
/// assert_eq!(file.upload, Some(UploadKind::Video));
/// assert_eq!(file.choices().unwrap(), &["a.mp4"]);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct InputSpec {
    /// The name of the input.
    pub name: String,
    /// Whether it has to be there.
    pub section: Section,
    /// What goes in.
    pub kind: InputKind,
    /// The value the frontend starts with. The server does not fill it in.
    pub default: Option<Value>,
    /// The smallest number allowed.
    pub min: Option<Value>,
    /// The largest number allowed.
    pub max: Option<Value>,
    /// The step of the frontend's widget; the server does not check it.
    pub step: Option<Value>,
    /// Set when the input names a file that a client may upload first.
    pub upload: Option<UploadKind>,
    /// Everything else that the description says (`multiline`, `lazy`, `image_folder`, …).
    pub options: Map<String, Value>,
}

/// Whether an input has to be given.
///
/// ```
/// use comfyui::object_info::{ObjectInfo, Section};
///
/// let info = ObjectInfo::from_slice(
///     br#"{"SaveImage": {"input": {"required": {"images": ["IMAGE"]}, "hidden": {"prompt": "PROMPT"}}}}"#,
/// )?;
/// let sections: Vec<_> = info.get("SaveImage").unwrap().inputs.iter().map(|input| input.section).collect();
/// assert_eq!(sections, [Section::Required, Section::Hidden]);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Section {
    /// A prompt without it is refused.
    Required,
    /// It may be left out.
    Optional,
    /// Filled in by the server.
    Hidden,
}

/// What goes into an input.
///
/// ```
/// use comfyui::object_info::{InputKind, ObjectInfo};
///
/// let info = ObjectInfo::from_slice(
///     br#"{"PreviewAny": {"input": {"required": {"source": ["*", {}]}}},
///          "ImageInvert": {"input": {"required": {"image": ["IMAGE"]}}}}"#,
/// )?;
/// assert_eq!(info.get("PreviewAny").unwrap().inputs[0].kind, InputKind::Any);
/// assert_eq!(info.get("ImageInvert").unwrap().inputs[0].kind, InputKind::Link("IMAGE".to_owned()));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum InputKind {
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// A text.
    String,
    /// A truth value.
    Boolean,
    /// One of these values, which need not be texts.
    Choice {
        /// The values allowed.
        options: Vec<Value>,
        /// Whether the list was written in place of the type, as classic nodes do. Only the other form can be
        /// linked to an output of type `COMBO`.
        classic: bool,
    },
    /// An output of this type, or of one of these types (`INT,FLOAT`); also types with a widget of their own.
    Link(String),
    /// Anything (`*`).
    Any,
    /// Inputs whose number or names depend on the values given (V3 nodes).
    Dynamic(Dynamic),
}

/// Inputs that appear or not depending on what a workflow gives; their names are `name.inner`.
///
/// ```
/// use comfyui::object_info::{Dynamic, InputKind, ObjectInfo};
///
/// let info = ObjectInfo::from_slice(
///     br#"{"BatchImagesNode": {"input": {"required": {"images": ["COMFY_AUTOGROW_V3", {"template": {
///         "input": {"required": {"image": ["IMAGE", {}]}}, "prefix": "image", "min": 2, "max": 50}}]}}}}"#,
/// )?;
/// let images = &info.get("BatchImagesNode").unwrap().inputs[0];
/// assert!(matches!(&images.kind, InputKind::Dynamic(Dynamic::Grow { names, .. }) if names.iter().nth(1).unwrap() == "image1"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Dynamic {
    /// A choice that brings its own inputs.
    Combo {
        /// The value of each choice and the inputs it brings.
        options: Vec<(Value, Vec<InputSpec>)>,
    },
    /// A row of equal inputs.
    Grow {
        /// The names of the inputs, without the name of the row in front.
        names: GrowNames,
        /// How many of the names are meant to be given at least.
        min: usize,
        /// What each of them is.
        template: Box<InputSpec>,
    },
    /// A link that brings further inputs once it is made.
    Slot {
        /// The type of the link.
        kind: String,
        /// The inputs it brings.
        inputs: Vec<InputSpec>,
    },
}

/// The names of the inputs of a row. Numbered ones are not kept one by one: a short description can stand for thousands.
///
/// ```
/// use comfyui::object_info::GrowNames;
///
/// let names = GrowNames::Numbered { prefix: "image".to_owned(), count: 2 };
/// assert_eq!(names.iter().collect::<Vec<_>>(), ["image0", "image1"]);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum GrowNames {
    /// As they are listed.
    Listed(Vec<String>),
    /// The same word with a number behind it, from 0.
    Numbered {
        /// The word.
        prefix: String,
        /// How many.
        count: usize,
    },
}

impl GrowNames {
    /// All names.
    pub fn iter(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let (listed, numbered) = match self {
            Self::Listed(names) => (names.as_slice(), None),
            Self::Numbered { prefix, count } => (&[] as &[String], Some((prefix, *count))),
        };
        let numbered = numbered
            .into_iter()
            .flat_map(|(prefix, count)| (0..count).map(move |index| Cow::Owned(format!("{prefix}{index}"))));
        listed.iter().map(|name| Cow::Borrowed(name.as_str())).chain(numbered)
    }
}

/// What kind of file an input takes. The words are those of the frontend, `image_upload` and so on.
///
/// ```
/// use comfyui::object_info::UploadKind;
///
/// assert_eq!(UploadKind::from_option("audio_upload"), Some(UploadKind::Audio));
/// assert_eq!(UploadKind::from_option("multiline"), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UploadKind {
    /// `image_upload`
    Image,
    /// `video_upload`
    Video,
    /// `audio_upload`
    Audio,
    /// `file_upload`: any file, in ComfyUI itself a 3D model.
    File,
    /// Another word that ends in `_upload`, without the ending.
    Other(String),
}

/// One output of a node class.
///
/// ```
/// use comfyui::object_info::ObjectInfo;
///
/// let info = ObjectInfo::from_slice(br#"{"LoadImage": {"output": ["IMAGE", "MASK"], "output_name": ["picture"]}}"#)?;
/// let names: Vec<_> = info.get("LoadImage").unwrap().outputs.iter().map(|output| output.name.as_str()).collect();
/// assert_eq!(names, ["picture", "MASK"]);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct OutputSpec {
    /// The name shown; the type where there is none.
    pub name: String,
    /// The type. `COMBO` for outputs that are described by a list of choices.
    pub kind: String,
    /// The choices, when the type is written as a list of them.
    pub choices: Option<Vec<Value>>,
    /// Whether the output is a list whose members are worked on one by one.
    pub is_list: bool,
}

impl ObjectInfo {
    /// Reads the answer of `GET /object_info` or `GET /object_info/{class}`.
    ///
    /// # Errors
    ///
    /// When the answer is not JSON, not an object, or holds more values than any ComfyUI has.
    pub fn from_slice(json: &[u8]) -> Result<Self, serde_json::Error> {
        use serde::de::Error as _;
        if !Self::fits(json) {
            let error = format!("it holds more than {MOST_VALUES} JSON values");
            return Err(serde_json::Error::custom(error));
        }
        lenient::from_slice(json)
    }

    /// Whether the answer holds no more values than any ComfyUI has. Told without parsing it.
    pub fn fits(json: &[u8]) -> bool {
        json.len() <= MOST_VALUES || lenient::count_values(json, usize::MAX) <= MOST_VALUES
    }

    /// The class with this name.
    pub fn get(&self, class: &str) -> Option<&NodeInfo> {
        self.classes.get(class)
    }

    /// Whether there is a class with this name.
    pub fn contains(&self, class: &str) -> bool {
        self.classes.contains_key(class)
    }

    /// All classes in the order of the answer.
    pub fn iter(&self) -> impl Iterator<Item = &NodeInfo> {
        self.classes.values()
    }

    /// How many classes there are.
    pub fn len(&self) -> usize {
        self.classes.len()
    }

    /// Whether there are none at all.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// The model files that the loaders of this ComfyUI offer from one folder, such as `checkpoints`.
    ///
    /// ```
    /// use comfyui::object_info::ObjectInfo;
    ///
    /// let info = ObjectInfo::from_slice(
    ///     br#"{"CheckpointLoaderSimple": {"input": {"required": {"ckpt_name": [["a.safetensors", "b.ckpt"]]}}}}"#,
    /// )?;
    /// assert_eq!(info.models("checkpoints"), ["a.safetensors", "b.ckpt"]);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn models(&self, folder: &str) -> Vec<&str> {
        let mut names = indexmap::IndexSet::new();
        for node in self.iter() {
            for input in &node.inputs {
                if model_folder(&node.class, &input.name) == Some(folder) {
                    names.extend(input.choices().unwrap_or_default().iter().filter_map(Value::as_str));
                }
            }
        }
        names.into_iter().filter(|name| has_model_ending(name)).collect()
    }
}

impl<'de> Deserialize<'de> for ObjectInfo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Class by class: the whole answer as values would be many times its text.
        struct Classes;
        impl<'de> Visitor<'de> for Classes {
            type Value = ObjectInfo;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("node classes by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectInfo, A::Error> {
                let mut classes = IndexMap::new();
                while let Some((class, described)) = map.next_entry::<String, Value>()? {
                    classes.insert(class.clone(), parse::node(class, described));
                }
                Ok(ObjectInfo { classes })
            }
        }
        deserializer.deserialize_map(Classes)
    }
}

/// A later class replaces an earlier one of the same name.
impl FromIterator<NodeInfo> for ObjectInfo {
    fn from_iter<T: IntoIterator<Item = NodeInfo>>(nodes: T) -> Self {
        Self { classes: nodes.into_iter().map(|node| (node.class.clone(), node)).collect() }
    }
}

impl NodeInfo {
    /// The input with this name, hidden ones included.
    pub fn input(&self, name: &str) -> Option<&InputSpec> {
        self.inputs.iter().find(|input| input.name == name)
    }
}

impl InputSpec {
    /// The values allowed, when there is a list of them.
    pub fn choices(&self) -> Option<&[Value]> {
        match &self.kind {
            InputKind::Choice { options, .. } => Some(options),
            _ => None,
        }
    }

    /// Whether the choices are model files, told by their endings.
    pub fn lists_models(&self) -> bool {
        self.choices().is_some_and(|choices| choices.iter().filter_map(Value::as_str).any(has_model_ending))
    }
}

impl UploadKind {
    /// Reads a word such as `image_upload`.
    pub fn from_option(option: &str) -> Option<Self> {
        let kind = option.strip_suffix("_upload")?;
        Some(match kind {
            "image" => Self::Image,
            "video" => Self::Video,
            "audio" => Self::Audio,
            "file" => Self::File,
            _ => Self::Other(kind.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_listed_once_without_what_is_no_file() {
        let info = ObjectInfo::from_slice(
            br#"{"VAELoader": {"input": {"required": {"vae_name": [["x.safetensors", "pixel_space"]]}}},
                 "MyLoader": {"input": {"optional": {"vae_name": ["COMBO", {"options": ["x.safetensors", "y.PT"]}]}}}}"#,
        )
        .unwrap();
        assert_eq!(info.models("vae"), ["x.safetensors", "y.PT"]);
        assert!(info.models("loras").is_empty());
    }
}
