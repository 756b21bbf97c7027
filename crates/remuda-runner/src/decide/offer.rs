//! What a worker offers, from its own description of its nodes.

use comfyui::{ObjectInfo, lenient};
use remuda_core::Sha256;
use serde_json::Value;

/// A description of a worker's nodes, ready to be kept.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) info: ObjectInfo,
    /// The text to keep …
    pub(crate) json: String,
    /// … and its name.
    pub(crate) hash: Sha256,
}

/// Why a description cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// It holds more values than can be kept.
    #[error("it holds more JSON values than any ComfyUI has")]
    TooLarge,
    /// It is not what ComfyUI writes.
    #[error(transparent)]
    NotJson(#[from] serde_json::Error),
}

/// Reads an answer of `/object_info`.
///
/// The lists of input files are left out of what is kept: they change with every upload, say nothing that a check before
/// placing could use, and would make every worker's description another one.
pub(crate) fn describe(answer: &[u8]) -> Result<Described, Unreadable> {
    if !ObjectInfo::fits(answer) {
        return Err(Unreadable::TooLarge);
    }
    let mut value: Value = lenient::from_slice(answer)?;
    for class in value.as_object_mut().into_iter().flat_map(serde_json::Map::values_mut) {
        for section in ["required", "optional"] {
            let inputs = class.get_mut("input").and_then(|input| input.get_mut(section));
            let inputs = inputs.and_then(Value::as_object_mut);
            inputs.into_iter().flat_map(serde_json::Map::values_mut).for_each(forget_files);
        }
    }
    let json = value.to_string();
    // Two forms of it at once are enough.
    drop(value);
    let hash = Sha256::of(json.as_bytes());
    Ok(Described { info: ObjectInfo::from_slice(json.as_bytes())?, json, hash })
}

fn forget_files(input: &mut Value) {
    let Some([kind, rest @ ..]) = input.as_array_mut().map(Vec::as_mut_slice) else { return };
    let Some(options) = rest.first_mut().and_then(Value::as_object_mut) else { return };
    let uploads =
        |(name, value): (&String, &Value)| name.ends_with("_upload") && value.as_bool() == Some(true);
    if !options.iter().any(uploads) {
        return;
    }
    if kind.is_array() {
        *kind = Value::Array(Vec::new());
    }
    if let Some(choices) = options.get_mut("options").filter(|choices| choices.is_array()) {
        *choices = Value::Array(Vec::new());
    }
    // The first file by name, in ComfyUI's own loaders.
    options.remove("default");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(files: &str) -> String {
        format!(
            r#"{{"LoadImage": {{"input": {{"required": {{"image": [{files}, {{"image_upload": true}}]}}}}, "output": ["IMAGE"]}},
                "LoadVideo": {{"input": {{"required": {{"file": ["COMBO", {{"options": {files}, "video_upload": true}}]}}}}}},
                "VAELoader": {{"input": {{"required": {{"vae_name": [["x.safetensors", "pixel_space"]], "nan": ["FLOAT", {{"default": NaN}}]}}}}}}}}"#
        )
    }

    #[test]
    fn uploads_do_not_change_the_description_and_models_do() {
        let one = describe(answer(r#"["a.png"]"#).as_bytes()).unwrap();
        let two = describe(answer(r#"["a.png", "b.png"]"#).as_bytes()).unwrap();
        assert_eq!(one.hash, two.hash);
        let three = describe(answer("[]").replace("x.safetensors", "y.safetensors").as_bytes()).unwrap();
        assert_ne!(one.hash, three.hash);
        assert_eq!(one.info.get("LoadImage").unwrap().inputs[0].choices().unwrap().len(), 0);
    }

    #[test]
    fn nodes_and_models_are_offered() {
        let info = describe(answer("[]").as_bytes()).unwrap().info;
        let offer = remuda_preflight::capabilities(["gpu".to_owned()].into(), &info);
        assert_eq!(offer.nodes.len(), 3);
        assert_eq!(offer.models.into_iter().collect::<Vec<_>>(), ["x.safetensors"]);
        assert!(offer.labels.contains("gpu"));
    }
}
