//! The tolerant reading of one class description.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::{Dynamic, GrowNames, InputKind, InputSpec, NodeInfo, OutputSpec, Section, UploadKind};

/// More names than this are not made from the description of a growing row; ComfyUI itself stops at a hundred.
const MAX_GROW: usize = 100;

/// More inputs than this are not read of one class, those that dynamic ones bring along and the names of growing rows
/// included. A check looks at all of them for every node of the class. Real classes stay below 500.
const MAX_INPUTS: usize = 2_000;

/// Types with longer names count as any: a check compares them for every link.
const MAX_TYPE: usize = 1_024;

/// The longest word that numbered inputs begin with.
const LONGEST_PREFIX: usize = 256;

/// Inputs that take uploads although their descriptions do not say so: the frontend part of their extension knows.
const KNOWN_UPLOADS: [(&str, &str, UploadKind); 2] =
    [("VHS_LoadVideo", "video", UploadKind::Video), ("VHS_LoadAudioUpload", "audio", UploadKind::Audio)];

/// Reads the description of a class; what it does not say, or says in no known way, stays at its default.
pub(super) fn node(class: String, described: Value) -> NodeInfo {
    let Value::Object(mut described) = described else {
        return NodeInfo { display_name: class.clone(), class, ..NodeInfo::default() };
    };
    let text = |key: &str| described.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let flag = |key: &str| described.get(key).and_then(Value::as_bool).unwrap_or_default();
    let display_name =
        Some(text("display_name")).filter(|name| !name.is_empty()).unwrap_or_else(|| class.clone());
    let mut node = NodeInfo {
        display_name,
        category: text("category"),
        python_module: text("python_module"),
        output_node: flag("output_node"),
        deprecated: flag("deprecated"),
        experimental: flag("experimental"),
        api_node: flag("api_node"),
        outputs: outputs(&described),
        inputs: {
            let order = described.swap_remove("input_order").unwrap_or_default();
            let mut room = Room(MAX_INPUTS);
            sections(described.swap_remove("input").unwrap_or_default(), &order, &mut room)
        },
        class,
    };
    for (class, input, upload) in KNOWN_UPLOADS {
        let known = node.inputs.iter_mut().find(|known| node.class == class && known.name == input);
        if let Some(known) = known {
            known.upload.get_or_insert(upload);
        }
    }
    node
}

/// How many inputs of a class may still be read.
struct Room(usize);

impl Room {
    fn take_one(&mut self) -> bool {
        self.0.checked_sub(1).inspect(|left| self.0 = *left).is_some()
    }
}

/// The inputs of all sections, in the order that `input_order` gives, or else in the order of the text.
fn sections(input: Value, order: &Value, room: &mut Room) -> Vec<InputSpec> {
    let Value::Object(mut input) = input else {
        return Vec::new();
    };
    let known =
        [("required", Section::Required), ("optional", Section::Optional), ("hidden", Section::Hidden)];
    let mut specs = Vec::new();
    for (key, section) in known {
        let Some(Value::Object(described)) = input.swap_remove(key) else {
            continue;
        };
        // Taken out one by one without moving the others.
        let mut described: IndexMap<String, Option<Value>> =
            described.into_iter().map(|(name, one)| (name, Some(one))).collect();
        for name in order.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            let Some(one) = described.get_mut(name).and_then(Option::take) else { continue };
            if room.take_one() {
                specs.push(spec(name.to_owned(), section, one, room));
            }
        }
        for (name, one) in described {
            let Some(one) = one else { continue };
            if room.take_one() {
                specs.push(spec(name, section, one, room));
            }
        }
    }
    specs
}

/// One input: `[type, options]`, where the type is a text or a list of choices; hidden ones may be a bare text.
fn spec(name: String, section: Section, described: Value, room: &mut Room) -> InputSpec {
    let (kind, options) = match described {
        Value::Array(parts) => {
            let mut parts = parts.into_iter();
            let kind = parts.next().unwrap_or_default();
            let options = parts.next();
            (kind, options)
        }
        bare => (bare, None),
    };
    let mut options = match options {
        Some(Value::Object(options)) => options,
        _ => Map::new(),
    };
    let upload = options
        .iter()
        .filter(|(_, on)| **on != Value::Bool(false) && !on.is_null())
        .find_map(|(option, _)| UploadKind::from_option(option));
    let kind = input_kind(kind, &mut options, room);
    let mut take = |key: &str| options.shift_remove(key).filter(|value| !value.is_null());
    InputSpec {
        name,
        section,
        kind,
        default: take("default"),
        min: take("min"),
        max: take("max"),
        step: take("step"),
        upload,
        options,
    }
}

fn input_kind(kind: Value, options: &mut Map<String, Value>, room: &mut Room) -> InputKind {
    let kind = match kind {
        Value::String(kind) => kind,
        Value::Array(choices) => {
            return InputKind::Choice { options: choices, classic: true };
        }
        other => other.to_string(),
    };
    match kind.as_str() {
        long if long.len() > MAX_TYPE => InputKind::Any,
        "INT" => InputKind::Int,
        "FLOAT" => InputKind::Float,
        "STRING" => InputKind::String,
        "BOOLEAN" => InputKind::Boolean,
        "*" => InputKind::Any,
        "COMBO" => InputKind::Choice { options: take_list(options, "options"), classic: false },
        "COMFY_DYNAMICCOMBO_V3" => InputKind::Dynamic(Dynamic::Combo {
            options: take_list(options, "options")
                .into_iter()
                .map(|option| dynamic_option(option, room))
                .collect(),
        }),
        "COMFY_AUTOGROW_V3" => grow(options.shift_remove("template").unwrap_or_default(), room),
        "COMFY_DYNAMICSLOT_V3" => InputKind::Dynamic(Dynamic::Slot {
            kind: options.get("slotType").and_then(Value::as_str).unwrap_or("*").to_owned(),
            inputs: sections(options.shift_remove("inputs").unwrap_or_default(), &Value::Null, room),
        }),
        _ => InputKind::Link(kind),
    }
}

fn take_list(options: &mut Map<String, Value>, key: &str) -> Vec<Value> {
    match options.shift_remove(key) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

fn dynamic_option(option: Value, room: &mut Room) -> (Value, Vec<InputSpec>) {
    let Value::Object(mut option) = option else {
        return (option, Vec::new());
    };
    let inputs = sections(option.swap_remove("inputs").unwrap_or_default(), &Value::Null, room);
    (option.swap_remove("key").unwrap_or_default(), inputs)
}

fn grow(mut template: Value, room: &mut Room) -> InputKind {
    let count = |key: &str| {
        let count = template.get(key).and_then(Value::as_u64).unwrap_or_default();
        usize::try_from(count).unwrap_or(MAX_GROW).min(MAX_GROW)
    };
    let (min, max) = (count("min"), count("max"));
    let names = match (template.get("names"), template.get("prefix").and_then(Value::as_str)) {
        (Some(Value::Array(names)), _) => {
            let names = names.iter().filter_map(Value::as_str).take_while(|_| room.take_one());
            GrowNames::Listed(names.map(str::to_owned).collect())
        }
        // A name of that length is none, and each use of the row would write all of them.
        (_, Some(prefix)) if prefix.len() <= LONGEST_PREFIX => {
            let count = (0..max).take_while(|_| room.take_one()).count();
            GrowNames::Numbered { prefix: prefix.to_owned(), count }
        }
        _ => GrowNames::Listed(Vec::new()),
    };
    let inner = template.get_mut("input").map(Value::take).unwrap_or_default();
    let inner = sections(inner, &Value::Null, room);
    let any = || InputSpec {
        name: String::new(),
        section: Section::Optional,
        kind: InputKind::Any,
        default: None,
        min: None,
        max: None,
        step: None,
        upload: None,
        options: Map::new(),
    };
    InputKind::Dynamic(Dynamic::Grow {
        names,
        min,
        // Of several described inputs ComfyUI takes the first of the last section.
        template: Box::new(last_section_first(inner).unwrap_or_else(any)),
    })
}

fn last_section_first(inputs: Vec<InputSpec>) -> Option<InputSpec> {
    let section = inputs.last()?.section;
    inputs.into_iter().find(|input| input.section == section)
}

fn outputs(described: &Map<String, Value>) -> Vec<OutputSpec> {
    let list =
        |key: &str| described.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (names, lists) = (list("output_name"), list("output_is_list"));
    let output = |(index, described): (usize, &Value)| {
        let (kind, choices) = match described {
            Value::String(kind) => (kind.clone(), None),
            Value::Array(choices) => ("COMBO".to_owned(), Some(choices.clone())),
            other => (other.to_string(), None),
        };
        let kind = if kind.len() > MAX_TYPE { "*".to_owned() } else { kind };
        OutputSpec {
            name: names.get(index).and_then(Value::as_str).unwrap_or(&kind).to_owned(),
            is_list: lists.get(index).and_then(Value::as_bool).unwrap_or_default(),
            kind,
            choices,
        }
    };
    list("output").iter().enumerate().map(output).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::arbitrary;
    use crate::object_info::ObjectInfo;

    fn read(described: Value) -> NodeInfo {
        node("X".to_owned(), described)
    }

    #[test]
    fn classic_and_v3_choices_read_alike() {
        let node = read(json!({"input": {
            "required": {"a": [["x", 5, null], {"image_upload": true}], "b": ["COMBO", {"options": [5, 10]}]},
            "optional": {"c": ["COMBO", {}], "d": ["INT,FLOAT"], "e": ["*", {"lazy": true}]},
            "hidden": {"prompt": "PROMPT", "id": ["UNIQUE_ID"]}
        }}));
        let choices = |options, classic| InputKind::Choice { options, classic };
        let kinds: Vec<_> = node.inputs.iter().map(|input| input.kind.clone()).collect();
        let link = |kind: &str| InputKind::Link(kind.to_owned());
        assert_eq!(
            kinds,
            [
                choices(vec![json!("x"), json!(5), json!(null)], true),
                choices(vec![json!(5), json!(10)], false),
                choices(vec![], false),
                link("INT,FLOAT"),
                InputKind::Any,
                link("PROMPT"),
                link("UNIQUE_ID"),
            ]
        );
        assert_eq!(node.inputs[0].upload, Some(UploadKind::Image));
        assert_eq!(node.inputs[4].options["lazy"], json!(true));
        assert_eq!(node.inputs[5].section, Section::Hidden);
    }

    #[test]
    fn numbers_keep_their_limits_and_the_order_is_comfyuis() {
        let node = read(json!({
            "input": {"required": {
                "z": ["INT", {"default": 0, "min": 0, "max": u64::MAX}], "a": ["FLOAT", {"step": 0.1, "max": null}]}},
            "input_order": {"required": ["a", "gone"]},
        }));
        assert_eq!(node.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), ["a", "z"]);
        assert_eq!(node.inputs[1].max, Some(json!(u64::MAX)));
        assert_eq!((&node.inputs[0].max, &node.inputs[0].step), (&None, &Some(json!(0.1))));
    }

    #[test]
    fn dynamic_inputs_are_taken_apart() {
        let node = read(json!({"input": {"required": {
            "how": ["COMFY_DYNAMICCOMBO_V3", {"options": [
                {"key": "size", "inputs": {"required": {"width": ["INT", {"min": 1}]}}}, {"key": "none"}]}],
            "images": ["COMFY_AUTOGROW_V3", {"template": {
                "input": {"required": {"image": ["IMAGE", {}]}}, "prefix": "image", "min": 1, "max": 3}}],
        }}}));
        let InputKind::Dynamic(Dynamic::Combo { options }) = &node.inputs[0].kind else { panic!("{node:?}") };
        assert_eq!((&options[0].0, options[0].1[0].name.as_str()), (&json!("size"), "width"));
        assert!(options[1].1.is_empty());
        let InputKind::Dynamic(Dynamic::Grow { names, min, template }) = &node.inputs[1].kind else {
            panic!("{node:?}")
        };
        assert_eq!(
            (names.iter().collect::<Vec<_>>(), *min),
            (["image0", "image1", "image2"].map(Into::into).to_vec(), 1)
        );
        assert_eq!(template.kind, InputKind::Link("IMAGE".to_owned()));
    }

    #[test]
    fn outputs_may_be_lists_of_choices_and_may_lack_names() {
        let node = read(
            json!({"output": ["IMAGE", ["a", "b"], 7], "output_name": ["pic"], "output_is_list": [true]}),
        );
        let read: Vec<_> =
            node.outputs.iter().map(|o| (o.name.as_str(), o.kind.as_str(), o.is_list)).collect();
        assert_eq!(read, [("pic", "IMAGE", true), ("COMBO", "COMBO", false), ("7", "7", false)]);
        assert_eq!(node.outputs[1].choices, Some(vec![json!("a"), json!("b")]));
    }

    #[test]
    fn infinity_as_a_limit_is_no_limit() {
        let info =
            ObjectInfo::from_slice(br#"{"X": {"input": {"required": {"a": ["FLOAT", {"max": Infinity}]}}}}"#);
        assert_eq!(info.unwrap().get("X").unwrap().inputs[0].max, None);
    }

    const WORDS: &[&str] = &[
        "input",
        "required",
        "optional",
        "hidden",
        "output",
        "options",
        "template",
        "names",
        "prefix",
        "min",
        "max",
        "COMBO",
        "INT",
        "COMFY_AUTOGROW_V3",
        "COMFY_DYNAMICCOMBO_V3",
        "COMFY_DYNAMICSLOT_V3",
        "inputs",
        "key",
    ];

    proptest! {
        #[test]
        fn any_description_is_read(value in arbitrary::json(WORDS)) {
            read(value.clone());
            read(json!({"input": value.clone(), "output": value.clone(), "output_name": value.clone()}));
            read(json!({"input": {"required": {"a": ["COMBO", value.clone()], "b": value.clone(),
                "c": ["COMFY_AUTOGROW_V3", {"template": value.clone()}],
                "d": ["COMFY_DYNAMICCOMBO_V3", {"options": [value.clone(), {"inputs": value}]}]}}}));
        }
    }
}
