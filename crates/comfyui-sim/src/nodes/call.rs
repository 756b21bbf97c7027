//! One call of a node: its inputs by type, and what it may do besides computing.

use super::registry::Class;
use super::value::{Model, Value};
use crate::engine::{Exception, Frame, Raised, Run};
use crate::json::Json;
use crate::media::{Audio, EncodeError, Image};
use indexmap::IndexMap;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What a node gives back.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    /// One value per output.
    pub(crate) outputs: Vec<Value>,
    /// What the user gets to see, if anything.
    pub(crate) ui: Option<Json>,
    /// Whether the ui holds something that JSON cannot.
    pub(crate) unserializable: bool,
    /// Nodes to run in place of this one; `outputs` is then unused.
    pub(crate) expansion: Option<Expansion>,
    /// An asynchronous node is done only then.
    pub(crate) ready_at: Option<Instant>,
}

/// Nodes made at run time, and which of their outputs are those of the node that made them.
#[derive(Debug)]
pub(crate) struct Expansion {
    /// Id and node, in order.
    pub(crate) nodes: Vec<(String, Json)>,
    /// A link for each output.
    pub(crate) results: Vec<Json>,
}

impl Returned {
    /// Outputs only.
    pub(crate) fn values(outputs: impl IntoIterator<Item = Value>) -> Returned {
        Returned { outputs: outputs.into_iter().collect(), ..Returned::default() }
    }

    /// Something to show only.
    pub(crate) fn ui(ui: Json) -> Returned {
        Returned { ui: Some(ui), ..Returned::default() }
    }
}

/// What outlives a prompt: the model in memory and the objects that ComfyUI keeps for nodes.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    loaded: Mutex<Option<String>>,
    suffixes: Mutex<HashMap<(String, String), String>>,
    random: Mutex<Random>,
}

impl Memory {
    pub(crate) fn new(seed: u64) -> Memory {
        Memory { random: Mutex::new(Random(seed)), ..Memory::default() }
    }

    /// Forgets the loaded model.
    pub(crate) fn unload(&self) {
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Notes that a model is in memory now; true if another one was there before.
    fn load(&self, file: &str) -> bool {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = loaded.as_deref() != Some(file);
        *loaded = Some(file.to_owned());
        changed
    }

    /// Forgets the objects of nodes that are not in this prompt.
    pub(crate) fn keep_objects(&self, is_there: impl Fn(&str, &str) -> bool) {
        let mut suffixes = self.suffixes.lock().unwrap_or_else(PoisonError::into_inner);
        suffixes.retain(|(id, class), _| is_there(id, class));
    }

    /// Five random letters.
    pub(crate) fn letters(&self) -> String {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        (0..5).map(|_| char::from(b'a' + (random.next() % 26) as u8)).collect()
    }

    /// Five random letters that stay the same for a node as long as prompts have it.
    fn letters_of(&self, id: &str, class: &str) -> String {
        let fresh = self.letters();
        let mut suffixes = self.suffixes.lock().unwrap_or_else(PoisonError::into_inner);
        suffixes.entry((id.to_owned(), class.to_owned())).or_insert(fresh).clone()
    }
}

/// SplitMix64: random enough for names and noise, the same for the same seed.
#[derive(Debug, Default)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// A node with its inputs, ready to run.
pub(crate) struct Call<'a> {
    pub(crate) run: &'a Run,
    pub(crate) memory: &'a Memory,
    pub(crate) node: &'a str,
    pub(crate) class: &'a Class,
    pub(crate) inputs: &'a IndexMap<String, Value>,
    /// The submitted prompt.
    pub(crate) prompt: &'a Json,
    /// `extra_data.extra_pnginfo`; null if there is none.
    pub(crate) png_info: &'a Json,
}

impl Call<'_> {
    /// An input, if it is there and not null.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.inputs.get(name).filter(|value| !matches!(value, Value::Plain(Json::Null)))
    }

    fn plain(&self, name: &str) -> Result<&Json, Raised> {
        match self.get(name) {
            Some(Value::Plain(json)) => Ok(json),
            other => Err(self.unfit(name, other)),
        }
    }

    fn unfit(&self, name: &str, found: Option<&Value>) -> Raised {
        let message = match found {
            None => format!("{}() missing 1 required positional argument: '{name}'", self.class.name),
            Some(value) => format!("unsupported value for '{name}': {}", value.text()),
        };
        Exception::new("TypeError", message).into()
    }

    pub(crate) fn text(&self, name: &str) -> Result<String, Raised> {
        self.plain(name).map(Json::str)
    }

    pub(crate) fn float(&self, name: &str) -> Result<f64, Raised> {
        let json = self.plain(name)?;
        json.as_f64().ok_or_else(|| self.unfit(name, self.get(name)))
    }

    /// A number without sign, cut to what fits.
    pub(crate) fn count(&self, name: &str) -> Result<u64, Raised> {
        match self.plain(name)? {
            Json::Int(value) => Ok(u64::try_from((*value).max(0)).unwrap_or(u64::MAX)),
            other => other.as_f64().map(|value| value as u64).ok_or_else(|| self.unfit(name, self.get(name))),
        }
    }

    /// A number of pixels, pictures and the like.
    pub(crate) fn size(&self, name: &str) -> Result<u32, Raised> {
        Ok(u32::try_from(self.count(name)?).unwrap_or(u32::MAX))
    }

    /// How many at once. A number that comes by a link is not held to the declared limit, and ends as in ComfyUI.
    pub(crate) fn batch(&self, name: &str) -> Result<usize, Raised> {
        match self.size(name)?.max(1) {
            batch @ ..=4096 => Ok(batch as usize),
            batch => {
                let message = format!("DefaultCPUAllocator: can't allocate memory for a batch of {batch}");
                Err(Exception::new("RuntimeError", message).into())
            }
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, Raised> {
        self.plain(name).map(Json::is_truthy)
    }

    pub(crate) fn images(&self, name: &str) -> Result<Arc<Vec<Arc<Image>>>, Raised> {
        match self.get(name) {
            Some(Value::Images(images)) => Ok(images.clone()),
            other => Err(self.unfit(name, other)),
        }
    }

    pub(crate) fn masks(&self, name: &str) -> Result<Arc<Vec<Arc<Image>>>, Raised> {
        match self.get(name) {
            Some(Value::Masks(masks)) => Ok(masks.clone()),
            other => Err(self.unfit(name, other)),
        }
    }

    pub(crate) fn audio(&self, name: &str) -> Result<Arc<Audio>, Raised> {
        match self.get(name) {
            Some(Value::Audio(audio)) => Ok(audio.clone()),
            other => Err(self.unfit(name, other)),
        }
    }

    /// A loaded model, or a text encoder.
    pub(crate) fn model(&self, name: &str) -> Result<Arc<Model>, Raised> {
        match self.get(name) {
            Some(Value::Model(model) | Value::Clip(model)) => Ok(model.clone()),
            other => Err(self.unfit(name, other)),
        }
    }

    pub(crate) fn conditioning(&self, name: &str) -> Result<Arc<str>, Raised> {
        match self.get(name) {
            Some(Value::Conditioning(text)) => Ok(text.clone()),
            other => Err(self.unfit(name, other)),
        }
    }

    /// Brings a model into memory, which takes its time unless it is there already.
    pub(crate) async fn load_model(&self, file: &str) {
        if self.memory.load(file) {
            self.run.pause(self.run.config.model_load).await;
        }
    }

    /// Waits as long as the node blocks.
    pub(crate) async fn pause_secs(&self, seconds: f64) -> Result<(), Raised> {
        if seconds.is_nan() {
            return Err(Exception::new("ValueError", "Invalid value NaN (not a number)").into());
        }
        self.run.pause(Duration::try_from_secs_f64(seconds).unwrap_or_default()).await;
        Ok(())
    }

    /// `ComfyUI_temp_` with letters that belong to this node.
    pub(crate) fn kept_temp_prefix(&self) -> String {
        format!("ComfyUI_temp_{}", self.memory.letters_of(self.node, &self.class.name))
    }

    /// `ComfyUI_temp_` with fresh letters.
    pub(crate) fn temp_prefix(&self) -> String {
        format!("ComfyUI_temp_{}", self.memory.letters())
    }

    /// What is written into files: the prompt, and everything in `extra_pnginfo`, each as JSON.
    pub(crate) fn metadata(&self) -> Result<Vec<(String, String)>, Exception> {
        let mut metadata = vec![("prompt".to_owned(), self.prompt.dump())];
        let complaint = match self.png_info {
            Json::Null => return Ok(metadata),
            Json::Dict(members) => {
                metadata.extend(members.iter().map(|(key, value)| (key.clone(), value.dump())));
                return Ok(metadata);
            }
            Json::Str(text) if text.is_empty() => return Ok(metadata),
            Json::List(values) if values.is_empty() => return Ok(metadata),
            Json::Str(_) => "string indices must be integers, not 'str'".to_owned(),
            Json::List(_) => "list indices must be integers or slices, not str".to_owned(),
            other => format!("'{}' object is not iterable", other.type_name()),
        };
        Err(Exception::new("TypeError", complaint).raised_in([Frame::comfy("nodes.py", 1615, "save_images")]))
    }

    /// Writes a file that is made beside the worker, because encoding takes long.
    pub(crate) async fn write(
        &self,
        path: PathBuf,
        encode: impl FnOnce() -> Result<Vec<u8>, EncodeError> + Send + 'static,
    ) -> Result<(), Raised> {
        if self.run.faults.disk_full {
            let error = std::io::Error::from_raw_os_error(28);
            return Err(super::files::os_error(&error, &path).into());
        }
        let target = path.clone();
        let written = tokio::task::spawn_blocking(move || {
            let bytes = encode().map_err(|error| Exception::new("ValueError", error.to_string()))?;
            std::fs::write(&target, bytes).map_err(|error| super::files::os_error(&error, &target))
        });
        match written.await {
            Ok(result) => result?,
            Err(_) => return Err(Exception::new("RuntimeError", "the encoder gave up").into()),
        }
        self.run.note_file(path);
        Ok(())
    }

    /// Reads a file of the input folder (or of where its name points).
    pub(crate) fn read(&self, name: &str) -> Result<(PathBuf, Vec<u8>), Raised> {
        let path = super::files::annotated(&self.run.dirs, name);
        let bytes = std::fs::read(&path).map_err(|error| super::files::os_error(&error, &path))?;
        Ok((path, bytes))
    }
}

/// A file as the history lists it.
pub(crate) fn listed(file: &str, subfolder: &str, kind: &str) -> Json {
    crate::json::dict([("filename", file.into()), ("subfolder", subfolder.into()), ("type", kind.into())])
}

/// The metadata as encoders take it.
pub(crate) fn borrowed(metadata: &[(String, String)]) -> Vec<(&str, &str)> {
    metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// A path as a text in an error message.
pub(crate) fn quoted(path: &Path) -> String {
    crate::json::repr_str(&path.display().to_string())
}
