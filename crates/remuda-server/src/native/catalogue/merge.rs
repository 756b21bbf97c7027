//! Several descriptions of nodes as one. Plain functions over texts.
//!
//! A class that all workers describe with the same text is passed on as that text. Of a class that they describe
//! differently, the first description counts, with the choices of all the others added to its own. What is not everywhere
//! says where it is, under the name `remuda`, which ComfyUI does not use.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use comfyui::lenient;
use comfyui::object_info::{NodeInfo, ObjectInfo, UploadKind, has_model_ending, model_folder};
use remuda_core::{KeyId, Sha256, Tenant};
use remuda_preflight::MOST_VALUES;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::choices;
use crate::error::{ApiError, ApiResult};
use crate::share::{Pass, Room, Visit};

/// How many workers are named that have a class or a choice. A large fleet would otherwise be named with every one.
const MOST_WORKERS: usize = 100;

/// For how many choices of an input it is said where they are.
const MOST_RARE: usize = 10_000;

/// The part of all that descriptions of one key may take.
pub(super) const SHARE: usize = 4;

/// What one or several workers say of their nodes. Those that count more come first in a list.
#[derive(Debug, Clone)]
pub(super) struct Description {
    /// Who says so.
    pub(super) workers: Vec<String>,
    /// The key that brought it, if no worker of the installation has it.
    pub(super) key: Option<KeyId>,
    /// The answer of `GET /object_info`.
    pub(super) json: String,
}

/// All descriptions as one.
#[derive(Debug, Default)]
pub(super) struct Merged {
    /// The answer of `GET /object_info`.
    pub(super) whole: Bytes,
    /// Of these bytes.
    pub(super) hash: String,
    /// Where in it the value of each class is.
    pub(super) classes: HashMap<String, Range<usize>>,
    /// Classes with inputs for files that a client may upload, in their order.
    pub(super) uploads: Vec<UploadClass>,
    /// The model files that loaders offer, by folder.
    pub(super) models: BTreeMap<&'static str, BTreeSet<String>>,
    /// What its readers are charged, by tenant.
    readers: Mutex<HashMap<Option<Tenant>, Weak<Pass>>>,
}

impl Merged {
    /// Charges the tenant that reads it: once for all of its readers, because they share the memory. Whoever keeps many
    /// versions in memory by reading slowly pays for each.
    pub(super) fn hold(&self, memory: &Room) -> ApiResult<Arc<Pass>> {
        let guest = Visit::guest();
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pass) = readers.get(&guest.tenant).and_then(Weak::upgrade) {
            return Ok(pass);
        }
        let pass = memory.take(&guest, self.whole.len() as u64).map_err(|_| ApiError::no_memory())?;
        let pass = Arc::new(pass);
        readers.retain(|_, pass| pass.strong_count() > 0);
        readers.insert(guest.tenant.clone(), Arc::downgrade(&pass));
        Ok(pass)
    }
}

/// A class with inputs for files that a client may upload.
#[derive(Debug)]
pub(super) struct UploadClass {
    pub(super) class: String,
    /// A worker of the installation describes it.
    pub(super) own: bool,
    /// Where in the whole the choices of these inputs are, brackets included.
    pub(super) lists: Vec<(Range<usize>, UploadKind)>,
}

/// The inputs of a class that take files.
fn file_inputs(node: &NodeInfo) -> HashMap<String, UploadKind> {
    let inputs = node.inputs.iter();
    inputs.filter_map(|input| Some((input.name.clone(), input.upload.clone()?))).collect()
}

/// Descriptions in, one out. Those that cannot be read are returned as errors and left out; so are, without a word, those
/// that hold more values than there is room for.
pub(super) fn merge(descriptions: &[Description]) -> (Merged, Vec<serde_json::Error>) {
    let mut errors = Vec::new();
    let mut read = Vec::new();
    let mut merged = Merged::default();
    let mut room = MOST_VALUES;
    let mut of_keys: HashMap<KeyId, usize> = HashMap::new();
    let mut uploads: HashMap<String, (bool, HashMap<String, UploadKind>)> = HashMap::new();
    let mut seen: HashSet<String> = HashSet::new();
    for description in descriptions {
        let values = lenient::count_values(description.json.as_bytes(), usize::MAX);
        let theirs = description.key.map(|key| of_keys.entry(key).or_insert(MOST_VALUES / SHARE));
        if values > room || theirs.as_ref().is_some_and(|theirs| values > **theirs) {
            continue;
        }
        room -= values;
        if let Some(theirs) = theirs {
            *theirs -= values;
        }
        let parsed = lenient::from_str::<Classes>(&description.json)
            .and_then(|classes| Ok((classes, ObjectInfo::from_slice(description.json.as_bytes())?)));
        match parsed {
            Ok((classes, info)) => {
                for node in info.iter() {
                    note_models(node, &mut merged.models);
                    // The first description of a class counts.
                    if seen.insert(node.class.clone()) {
                        let inputs = file_inputs(node);
                        if !inputs.is_empty() {
                            uploads.insert(node.class.clone(), (description.key.is_none(), inputs));
                        }
                    }
                }
                // What was parsed takes many times its text: it is not kept.
                read.push((description, classes));
            }
            Err(error) => errors.push(error),
        }
    }
    let mut order: Vec<Class<'_>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (n, (_, classes)) in read.iter().enumerate() {
        for (name, raw) in &classes.0 {
            match places.entry(name) {
                Entry::Occupied(place) => order[*place.get()].add(n, raw),
                Entry::Vacant(place) => {
                    place.insert(order.len());
                    order.push(Class { name, holders: vec![(n, raw)] });
                }
            }
        }
    }
    let names: Vec<&[String]> = read.iter().map(|(description, _)| description.workers.as_slice()).collect();
    let mut whole = String::from("{");
    for class in order {
        if whole.len() > 1 {
            whole.push_str(", ");
        }
        whole.push_str(&json!(class.name).to_string());
        whole.push_str(": ");
        let from = whole.len();
        match class.united(&names) {
            Some(united) => whole.push_str(&united.to_string()),
            None => whole.push_str(class.holders[0].1.get()),
        }
        merged.classes.insert(class.name.to_owned(), from..whole.len());
        if let Some((own, inputs)) = uploads.remove(class.name) {
            let mut lists = choices::places(&whole[from..], &inputs);
            lists.iter_mut().for_each(|(list, _)| *list = list.start + from..list.end + from);
            merged.uploads.push(UploadClass { class: class.name.to_owned(), own, lists });
        }
    }
    whole.push('}');
    merged.hash = Sha256::of(whole.as_bytes()).to_string();
    merged.whole = Bytes::from(whole);
    (merged, errors)
}

fn note_models(node: &NodeInfo, models: &mut BTreeMap<&'static str, BTreeSet<String>>) {
    for input in &node.inputs {
        let (Some(folder), Some(choices)) = (model_folder(&node.class, &input.name), input.choices()) else {
            continue;
        };
        let files = choices.iter().filter_map(Value::as_str).filter(|name| has_model_ending(name));
        models.entry(folder).or_default().extend(files.map(str::to_owned));
    }
}

/// One class, and who has it.
struct Class<'a> {
    name: &'a str,
    /// The number of the description, and what it says.
    holders: Vec<(usize, &'a RawValue)>,
}

impl<'a> Class<'a> {
    /// A class that one description names twice counts once.
    fn add(&mut self, n: usize, raw: &'a RawValue) {
        if self.holders.last().is_some_and(|(last, _)| *last != n) {
            self.holders.push((n, raw));
        }
    }

    /// The class with the choices of all, and a word on where it is. None: the first description says it all.
    fn united(&self, names: &[&[String]]) -> Option<Value> {
        let everywhere = self.holders.len() == names.len();
        let same = self.holders.iter().all(|(_, raw)| raw.get() == self.holders[0].1.get());
        if everywhere && same {
            return None;
        }
        let mut read = self.holders.iter().map(|(n, raw)| {
            let value = serde_json::from_str::<Value>(raw.get()).unwrap_or_default();
            (names[*n], value)
        });
        let (first, mut class) = read.next()?;
        if !class.is_object() {
            return None;
        }
        let mut note = Map::new();
        if !everywhere {
            let holders = self.holders.iter().flat_map(|(n, _)| names[*n]);
            note.insert("workers".to_owned(), holders.take(MOST_WORKERS).cloned().collect());
        }
        if !same {
            let others: Vec<_> = read.collect();
            let rare = unite_choices(first, &mut class, &others);
            if !rare.is_empty() {
                note.insert("choices".to_owned(), Value::Object(rare));
            }
        }
        if !note.is_empty() {
            class["remuda"] = Value::Object(note);
        }
        Some(class)
    }
}

/// Adds the choices of others to those of a class; where the choices are that not all have, by input.
fn unite_choices(first: &[String], class: &mut Value, others: &[(&[String], Value)]) -> Map<String, Value> {
    let mut rare = Map::new();
    for section in SECTIONS {
        let inputs = class.get_mut("input").and_then(|inputs| inputs.get_mut(section)?.as_object_mut());
        let Some(inputs) = inputs else { continue };
        for (input, described) in inputs {
            let Some(choices) = choices_mut(described) else { continue };
            let theirs: Vec<_> = others
                .iter()
                .filter_map(|(names, other)| Some((*names, choices_of(other, input)?)))
                .collect();
            if theirs.iter().all(|(_, other)| *other == choices) {
                continue;
            }
            // Which of those who let choose have which choice.
            let mut where_: HashMap<String, BTreeSet<usize>> = HashMap::new();
            for choice in choices.iter() {
                where_.entry(key(choice)).or_default().insert(0);
            }
            for (n, (_, other)) in theirs.iter().enumerate() {
                for choice in *other {
                    let entry = where_.entry(key(choice));
                    if matches!(entry, Entry::Vacant(_)) {
                        choices.push(choice.clone());
                    }
                    entry.or_default().insert(n + 1);
                }
            }
            let names: Vec<&[String]> =
                std::iter::once(first).chain(theirs.iter().map(|(names, _)| *names)).collect();
            let mut found = Map::new();
            for choice in choices.iter() {
                if found.len() >= MOST_RARE {
                    break;
                }
                let key = key(choice);
                let Some(at) = where_.get(&key).filter(|at| at.len() < names.len()) else { continue };
                found.insert(key, at.iter().flat_map(|n| names[*n]).take(MOST_WORKERS).cloned().collect());
            }
            if !found.is_empty() {
                rare.insert(input.clone(), Value::Object(found));
            }
        }
    }
    rare
}

/// Where inputs with choices are.
pub(super) const SECTIONS: [&str; 2] = ["required", "optional"];

/// A choice as a name: choices need not be texts.
fn key(choice: &Value) -> String {
    choice.as_str().map_or_else(|| choice.to_string(), str::to_owned)
}

/// The choices of an input, in whichever way they are written: `[[…], {…}]` or `["COMBO", {"options": […]}]`.
fn choices_mut(described: &mut Value) -> Option<&mut Vec<Value>> {
    let parts = described.as_array_mut()?;
    if parts.first()?.is_array() {
        return parts.first_mut()?.as_array_mut();
    }
    if parts.first()? == "COMBO" {
        return parts.get_mut(1)?.get_mut("options")?.as_array_mut();
    }
    None
}

fn choices_of<'a>(class: &'a Value, input: &str) -> Option<&'a Vec<Value>> {
    SECTIONS.iter().find_map(|section| {
        let parts = class.get("input")?.get(section)?.get(input)?.as_array()?;
        match parts.first()? {
            Value::Array(choices) => Some(choices),
            kind if kind == "COMBO" => parts.get(1)?.get("options")?.as_array(),
            _ => None,
        }
    })
}

/// Classes with their descriptions as they came, in their order.
struct Classes(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Classes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Classes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("node classes by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Classes, A::Error> {
                let mut classes = Vec::new();
                while let Some(class) = map.next_entry()? {
                    classes.push(class);
                }
                Ok(Classes(classes))
            }
        }

        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(descriptions: &[(&[&str], Value)]) -> Value {
        let descriptions: Vec<_> = descriptions
            .iter()
            .map(|(workers, json)| Description {
                workers: workers.iter().map(|name| (*name).to_owned()).collect(),
                key: None,
                json: json.to_string(),
            })
            .collect();
        let (merged, errors) = merge(&descriptions);
        assert!(errors.is_empty());
        let whole: Value = serde_json::from_slice(&merged.whole).unwrap();
        for (class, range) in &merged.classes {
            let value: Value = serde_json::from_slice(&merged.whole[range.clone()]).unwrap();
            assert_eq!(value, whole[class]);
        }
        whole
    }

    #[test]
    fn one_description_stays_as_it_is_to_the_letter() {
        let json = r#"{"B": {"x":1.0,  "y": [18446744073709551615]}, "A": {"z": 1E+2}}"#;
        let only = Description { workers: vec!["gpu-1".to_owned()], key: None, json: json.to_owned() };
        // … and the same one of another worker adds nothing.
        for many in [vec![only.clone()], vec![only.clone(), only]] {
            assert_eq!(merge(&many).0.whole, json);
        }
    }

    #[test]
    fn choices_are_united_in_whichever_way_they_are_written() {
        let classic = json!([["a", "b", 3], {"tooltip": "t"}]);
        let modern = json!(["COMBO", {"options": ["b", "c"], "multiselect": false}]);
        let with = |input: &Value| json!({"Load": {"input": {"required": {"name": input}}, "output": ["X"]}});
        let merged = of(&[(&["gpu-1"], with(&classic)), (&["gpu-2", "gpu-3"], with(&modern))]);
        assert_eq!(
            merged["Load"]["input"]["required"]["name"],
            json!([["a", "b", 3, "c"], {"tooltip": "t"}])
        );
        let rare = json!({"choices": {"name": {"a": ["gpu-1"], "3": ["gpu-1"], "c": ["gpu-2", "gpu-3"]}}});
        assert_eq!(merged["Load"]["remuda"], rare);
        let merged = of(&[(&["gpu-2"], with(&modern)), (&["gpu-1"], with(&classic))]);
        let united = json!(["COMBO", {"options": ["b", "c", "a", 3], "multiselect": false}]);
        assert_eq!(merged["Load"]["input"]["required"]["name"], united);
    }

    #[test]
    fn classes_are_united_and_say_where_they_are() {
        let merged = of(&[
            (&["gpu-1"], json!({"Both": {"category": "new"}, "One": {"category": "x"}})),
            (&["gpu-2"], json!({"Two": {"category": "y"}, "Both": {"category": "old"}})),
        ]);
        assert_eq!(merged.as_object().unwrap().keys().collect::<Vec<_>>(), ["Both", "One", "Two"]);
        assert_eq!(merged["Both"], json!({"category": "new"}));
        assert_eq!(merged["One"], json!({"category": "x", "remuda": {"workers": ["gpu-1"]}}));
        assert_eq!(merged["Two"]["remuda"], json!({"workers": ["gpu-2"]}));
    }

    #[test]
    fn what_makes_no_sense_does_no_harm() {
        let merged = of(&[
            (
                &["gpu-1"],
                json!({"A": 1, "B": {"input": 7}, "C": {"input": {"required": {"x": ["INT"], "y": []}}}}),
            ),
            (
                &["gpu-2"],
                json!({"A": 2, "B": {"input": {"required": {"x": [["a"]]}}}, "C": {"input": {"required": {"x": [[1]]}}}}),
            ),
        ]);
        assert_eq!(merged["A"], 1);
        assert_eq!(merged["B"], json!({"input": 7}));
        assert_eq!(merged["C"]["input"]["required"]["x"], json!(["INT"]));
        let nonsense = Description { workers: vec!["gpu-1".to_owned()], key: None, json: "[]".to_owned() };
        let (merged, errors) = merge(&[nonsense]);
        assert_eq!((merged.whole.as_ref(), errors.len()), (&b"{}"[..], 1));
    }

    #[test]
    fn the_lists_of_inputs_for_files_are_found() {
        let info = json!({"LoadImage": {"input": {"required": {"image": [["a.png"], {"image_upload": true}]}}},
            "LoadVideo": {"input": {"required": {"file": ["COMBO", {"options": [], "video_upload": true}]}}}});
        let description =
            Description { workers: vec!["gpu-1".to_owned()], key: None, json: info.to_string() };
        let (merged, _) = merge(&[description]);
        let lists: Vec<_> = merged
            .uploads
            .iter()
            .flat_map(|upload| upload.lists.iter().map(|(list, kind)| (&merged.whole[list.clone()], kind)))
            .collect();
        assert_eq!(lists, [(&br#"["a.png"]"#[..], &UploadKind::Image), (b"[]", &UploadKind::Video)]);
    }

    #[test]
    fn models_are_known_by_their_folder() {
        let info = |name: &str| json!({"CheckpointLoaderSimple": {"input": {"required": {"ckpt_name": [[name, "none"]]}}}});
        let description = |name: &str| Description {
            workers: vec![name.to_owned()],
            key: None,
            json: info(name).to_string(),
        };
        let (merged, _) = merge(&[description("b.safetensors"), description("a.ckpt")]);
        let found: Vec<_> = merged.models["checkpoints"].iter().map(String::as_str).collect();
        assert_eq!(found, ["a.ckpt", "b.safetensors"]);
    }
}
