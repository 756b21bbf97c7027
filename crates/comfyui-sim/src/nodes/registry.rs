//! What every node class takes and gives, as `/object_info` tells it.
//!
//! The descriptions are data (see `data/README.md`). Choices that come from folders are filled in when
//! somebody asks, because files come and go.

use crate::config::{Profile, SimConfig};
use crate::engine::Dirs;
use crate::json::{Dict, Json};
use indexmap::IndexMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

const DESCRIPTIONS: &str = include_str!("../../data/object_info.json");
const DESCRIPTIONS_0_3_64: &str = include_str!("../../data/object_info_0_3_64.json");
const DESCRIPTIONS_0_3_30: &str = include_str!("../../data/object_info_0_3_30.json");
const FILE_LISTS: &str = include_str!("../../data/file_lists.json");

/// Where the choices of an input come from when they are not in the description.
#[derive(Debug, Clone)]
enum FileList {
    /// The model files of a folder.
    Models(String),
    /// Files of the input folder whose media type begins with one of these; all files if empty.
    InputTypes(Vec<String>),
    /// Files of the input folder with one of these endings.
    InputExtensions(Vec<String>),
}

/// One input of a class.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) required: bool,
    /// A type name, or a list of choices.
    kind: Json,
    options: Dict,
    files: Option<FileList>,
}

/// An input with its choices filled in.
#[derive(Debug, Clone)]
pub(crate) struct FilledInput {
    /// A type name, or a list of choices.
    pub(crate) kind: Json,
    /// The second half of the description.
    pub(crate) options: Dict,
}

impl FilledInput {
    /// The pair that error texts show as `input_config`.
    pub(crate) fn config(&self) -> Json {
        Json::List(vec![self.kind.clone(), Json::Dict(self.options.clone())])
    }

    /// The type name, unless it is a list of choices.
    pub(crate) fn type_name(&self) -> Option<&str> {
        self.kind.as_str()
    }

    /// The choices of a list in the classic or the newer notation.
    pub(crate) fn choices(&self) -> Option<&[Json]> {
        match &self.kind {
            Json::List(choices) => Some(choices),
            Json::Str(name) if name == "COMBO" => {
                Some(self.options.get("options").and_then(Json::as_list).unwrap_or_default())
            }
            _ => None,
        }
    }
}

/// One node class.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) name: String,
    /// The Python module it comes from.
    pub(crate) module: String,
    description: Json,
    /// Required and optional inputs in the order of the description.
    pub(crate) inputs: Vec<Input>,
    /// Hidden inputs: name and what is put there (`PROMPT`, `EXTRA_PNGINFO`, `UNIQUE_ID`).
    pub(crate) hidden: Vec<(String, String)>,
    /// Types of the outputs.
    pub(crate) returns: Vec<String>,
    pub(crate) output_node: bool,
    /// Written against ComfyUI's newer node interface, which keeps hidden inputs apart.
    pub(crate) newer: bool,
}

impl Class {
    /// The input of that name.
    pub(crate) fn input(&self, name: &str) -> Option<&Input> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// Whether results depend on the id of the node.
    pub(crate) fn knows_its_id(&self) -> bool {
        !self.newer && self.hidden.iter().any(|(_, kind)| kind == "UNIQUE_ID")
    }

    fn parse(name: &str, description: &Json, lists: &Json) -> Class {
        let mut inputs = Vec::new();
        let mut hidden = Vec::new();
        for (category, members) in description.get("input").and_then(Json::as_dict).into_iter().flatten() {
            for (input, config) in members.as_dict().into_iter().flatten() {
                if category == "hidden" {
                    let kind = config.as_list().and_then(<[Json]>::first).unwrap_or(config);
                    hidden.push((input.clone(), kind.str()));
                    continue;
                }
                let parts = config.as_list().unwrap_or_default();
                inputs.push(Input {
                    name: input.clone(),
                    required: category == "required",
                    kind: parts.first().cloned().unwrap_or(Json::Null),
                    options: parts.get(1).and_then(Json::as_dict).cloned().unwrap_or_default(),
                    files: lists.get(&format!("{name}.{input}")).and_then(FileList::parse),
                });
            }
        }
        Class {
            name: name.to_owned(),
            module: description.get("python_module").map(Json::str).unwrap_or_default(),
            inputs,
            hidden,
            returns: texts(description.get("output")),
            output_node: description.get("output_node").is_some_and(Json::is_truthy),
            newer: description.get("api_node").is_some(),
            description: description.clone(),
        }
    }
}

fn texts(value: Option<&Json>) -> Vec<String> {
    value.and_then(Json::as_list).unwrap_or_default().iter().map(Json::str).collect()
}

impl FileList {
    fn parse(value: &Json) -> Option<FileList> {
        if let Some(folder) = value.get("models") {
            return Some(FileList::Models(folder.str()));
        }
        if let Some(types) = value.get("input_types") {
            return Some(FileList::InputTypes(texts(Some(types))));
        }
        value.get("input_extensions").map(|endings| FileList::InputExtensions(texts(Some(endings))))
    }

    fn names(&self, config: &SimConfig, input: &Path) -> Vec<String> {
        let mut names: Vec<String> = match self {
            FileList::Models(folder) => config.models.get(folder).cloned().unwrap_or_default(),
            FileList::InputTypes(types) => files_of(input)
                .filter(|name| {
                    types.is_empty()
                        || mime_guess::from_path(name).first_raw().is_some_and(|mime| {
                            types.iter().any(|kind| mime.starts_with(&format!("{kind}/")))
                        })
                })
                .collect(),
            FileList::InputExtensions(endings) => files_of(input)
                .filter(|name| {
                    name.rsplit_once('.')
                        .is_some_and(|(_, ending)| endings.contains(&ending.to_ascii_lowercase()))
                })
                .collect(),
        };
        names.sort();
        names
    }
}

/// The plain files of a folder; nothing if it cannot be read.
fn files_of(folder: &Path) -> impl Iterator<Item = String> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
}

/// All classes of one simulated ComfyUI.
#[derive(Debug)]
pub(crate) struct Registry {
    config: Arc<SimConfig>,
    input: std::path::PathBuf,
    classes: IndexMap<String, Class>,
}

impl Registry {
    /// The classes of the configured version.
    pub(crate) fn new(config: Arc<SimConfig>, dirs: &Dirs) -> Registry {
        let mut descriptions = embedded(DESCRIPTIONS);
        let differences = match config.profile {
            Profile::V0_7_0 => Dict::new(),
            Profile::V0_3_64 => embedded(DESCRIPTIONS_0_3_64),
            Profile::V0_3_30 => embedded(DESCRIPTIONS_0_3_30),
        };
        for (name, description) in differences {
            if description.is_null() {
                descriptions.shift_remove(&name);
            } else {
                descriptions.insert(name, description);
            }
        }
        let lists = Json::Dict(embedded(FILE_LISTS));
        let classes = descriptions
            .iter()
            .map(|(name, description)| (name.clone(), Class::parse(name, description, &lists)))
            .collect();
        Registry { config, input: dirs.input.clone(), classes }
    }

    /// The names of all classes.
    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.classes.keys().map(String::as_str)
    }

    /// The class of that name.
    pub(crate) fn get(&self, name: &str) -> Option<&Class> {
        self.classes.get(name)
    }

    /// An input with the choices that exist now.
    pub(crate) fn fill(&self, input: &Input) -> FilledInput {
        let mut filled = FilledInput { kind: input.kind.clone(), options: input.options.clone() };
        let Some(files) = &input.files else {
            return filled;
        };
        let names = files.names(&self.config, &self.input).into_iter().map(Json::Str);
        let rest = filled.choices().unwrap_or_default().to_vec();
        let choices = Json::List(names.chain(rest).collect());
        if filled.type_name() == Some("COMBO") {
            filled.options.insert("options".into(), choices);
        } else {
            filled.kind = choices;
        }
        filled
    }

    /// `/object_info`, of one class or of all; an unknown class gives an empty object.
    pub(crate) fn object_info(&self, class: Option<&str>) -> Json {
        let wanted =
            self.classes.values().filter(|candidate| class.is_none_or(|name| name == candidate.name));
        Json::Dict(wanted.map(|class| (class.name.clone(), self.describe(class))).collect())
    }

    fn describe(&self, class: &Class) -> Json {
        let mut description = class.description.clone();
        for input in class.inputs.iter().filter(|input| input.files.is_some()) {
            let category = if input.required { "required" } else { "optional" };
            let place = description.as_dict_mut().and_then(|members| {
                members
                    .get_mut("input")?
                    .as_dict_mut()?
                    .get_mut(category)?
                    .as_dict_mut()?
                    .get_mut(&input.name)
            });
            if let Some(Json::List(parts)) = place {
                let filled = self.fill(input);
                if let Some(kind) = parts.first_mut() {
                    *kind = filled.kind;
                }
                if let Some(options) = parts.get_mut(1) {
                    *options = Json::Dict(filled.options);
                }
            }
        }
        description
    }
}

/// An embedded object. The data files are part of the program and tested below.
fn embedded(text: &str) -> Dict {
    match text.parse() {
        Ok(Json::Dict(members)) => members,
        _ => Dict::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(profile: Profile, base: &Path) -> Registry {
        let dirs = Dirs::below(base);
        fs::create_dir_all(&dirs.input).unwrap();
        Registry::new(Arc::new(SimConfig { profile, ..SimConfig::default() }), &dirs)
    }

    #[test]
    fn every_version_has_its_nodes() {
        let base = tempfile::tempdir().unwrap();
        for text in [DESCRIPTIONS, DESCRIPTIONS_0_3_64, DESCRIPTIONS_0_3_30, FILE_LISTS] {
            assert!(!embedded(text).is_empty());
        }
        assert!(registry(Profile::V0_7_0, base.path()).get("SaveVideo").is_some_and(|class| class.newer));
        assert!(registry(Profile::V0_3_64, base.path()).get("SaveImage").is_some_and(|class| !class.newer));
        assert!(registry(Profile::V0_3_30, base.path()).get("SaveVideo").is_none());
    }

    #[test]
    fn choices_come_from_models_and_from_the_input_folder() {
        let base = tempfile::tempdir().unwrap();
        let registry = registry(Profile::V0_7_0, base.path());
        for name in ["b.png", "a.jpg", "film.mp4", "notes.txt"] {
            fs::write(base.path().join("input").join(name), b"x").unwrap();
        }
        let choices = |class: &str, input: &str| {
            let filled = registry.fill(registry.get(class).unwrap().input(input).unwrap());
            filled.choices().unwrap().iter().map(Json::str).collect::<Vec<_>>()
        };
        assert_eq!(choices("LoadImage", "image"), ["a.jpg", "b.png"]);
        assert_eq!(choices("LoadVideo", "file"), ["film.mp4"]);
        assert_eq!(choices("VHS_LoadVideo", "video"), ["film.mp4"]);
        assert!(
            choices("CheckpointLoaderSimple", "ckpt_name").contains(&"flux1-dev-fp8.safetensors".to_owned())
        );
        let described = registry.object_info(Some("LoadVideo"));
        assert!(described.dump().contains(r#""options": ["film.mp4"]"#), "{described}");
        assert_eq!(registry.object_info(Some("NoSuchNode")), Json::empty_dict());
    }
}
