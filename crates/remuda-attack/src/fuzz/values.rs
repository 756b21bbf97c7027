//! Values that are right, and values that seldom are.

use crate::dice::Dice;
use serde_json::{Value, json};

/// What exists in the installation.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) tasks: Vec<String>,
    pub(super) prompts: Vec<String>,
    pub(super) assets: Vec<String>,
}

const NASTY: &[&str] = &[
    "",
    " ",
    "\0",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "%00",
    "%2e%2e%2f",
    "null",
    "NaN",
    "Infinity",
    "-0",
    "1e999",
    "-1",
    "0",
    "99999999999999999999",
    "18446744073709551616",
    "-9223372036854775809",
    "true",
    "[]",
    "{}",
    "[object Object]",
    "'",
    "\"",
    "<script>",
    "${7*7}",
    "{{7*7}}",
    "' OR 1=1 --",
    "\u{202e}",
    "\u{feff}",
    "\u{10ffff}",
    "ä",
    "日本語",
    "a\nb",
    "a\r\nX: y",
    "00000000-0000-0000-0000-000000000000",
    "urn:uuid:00000000-0000-0000-0000-000000000000",
    "asset:",
    "asset:zz",
    "x.png [output]",
    "2999-01-01T00:00:00Z",
    "0000-00-00",
    "-271821-04-20T00:00:00Z",
    "+999999-12-31T23:59:59Z",
    "bytes=0-",
    "*",
    "?",
    "#",
    ";",
    "a=b&c=d",
];

/// A text that was not meant.
pub(super) fn nasty(dice: &mut Dice) -> String {
    match dice.below(12) {
        0 => "a".repeat(dice.below(5_000)),
        1 => ".".repeat(dice.below(2_000)),
        2 => (0..dice.below(40)).filter_map(|_| char::from_u32(dice.below(0x11_0000) as u32)).collect(),
        3 => dice.next().to_string(),
        4 => format!("{}", f64::from_bits(dice.next())),
        _ => (*dice.pick(NASTY)).to_owned(),
    }
}

/// A value that was not meant.
pub(super) fn nasty_json(dice: &mut Dice) -> Value {
    match dice.below(10) {
        0 => Value::Null,
        1 => json!(dice.chance(50)),
        2 => json!(dice.next()),
        3 => json!(-(dice.next() as i64 & i64::MAX)),
        4 => json!(f64::from_bits(dice.next())),
        5 => json!([]),
        6 => json!({}),
        7 => (0..dice.below(60))
            .fold(json!(1), |inner, n| if n % 2 == 0 { json!([inner]) } else { json!({"a": inner}) }),
        8 => json!(vec![Value::Null; dice.below(200)]),
        _ => json!(nasty(dice)),
    }
}

/// A right value for something with this name.
pub(super) fn right(name: &str, known: &Known, dice: &mut Dice) -> String {
    let of = |list: &[String], dice: &mut Dice| match list.is_empty() {
        true => "5a5a5a5a-0000-4000-8000-000000000001".to_owned(),
        false => dice.pick(list).clone(),
    };
    match name {
        "id" | "task" => of(&known.tasks, dice),
        "prompt" => of(&known.prompts, dice),
        "sha256" => of(&known.assets, dice),
        "n" | "offset" | "messages" => "0".to_owned(),
        "limit" | "max_items" => (1 + dice.below(50)).to_string(),
        "before" => String::new(),
        "fence" | "attempt" | "size" => (1 + dice.below(3)).to_string(),
        "worker" => "fuzz".to_owned(),
        "key" => "assets/none".to_owned(),
        "status" => (*dice.pick(&["pending", "running", "completed", "failed", "cancelled"])).to_owned(),
        "sort_by" => "created_at".to_owned(),
        "sort_order" => "desc".to_owned(),
        "type" | "kind" => (*dice.pick(&["input", "output", "temp"])).to_owned(),
        "preview" => (*dice.pick(&["true", "webp;50", "jpeg;90"])).to_owned(),
        "channel" => (*dice.pick(&["rgb", "a", "rgba"])).to_owned(),
        "class" => (*dice.pick(&["SaveImage", "LoadImage", "KSampler"])).to_owned(),
        "folder" => (*dice.pick(&["checkpoints", "loras", "core"])).to_owned(),
        "setting" => format!("Fuzz.S{}", dice.below(20)),
        "filename" | "file" => (*dice.pick(&["fuzz.png", "a.json", "b.txt"])).to_owned(),
        "subfolder" | "path" | "dir" => (*dice.pick(&["", "sub"])).to_owned(),
        "recurse" | "full_info" | "split" | "overwrite" => "true".to_owned(),
        "clientId" | "workflow_id" => "fuzz".to_owned(),
        _ => "1".to_owned(),
    }
}

/// A graph that the simulator renders at once.
pub(super) fn graph(dice: &mut Dice) -> Value {
    let mut graph = crate::probe::graph(dice.below(1_000));
    if dice.chance(20) {
        graph["3"] = json!({"class_type": "LoadImage", "inputs": {"image": "fuzz.png"}});
        graph["4"] = json!({"class_type": "PreviewImage", "inputs": {"images": ["3", 0]}});
    }
    graph
}

/// Puts something wrong into one place of a value.
pub(super) fn spoil(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Object(fields) if !fields.is_empty() && dice.chance(85) => {
            let at = dice.below(fields.len());
            match dice.below(8) {
                0 => {
                    let name = fields.keys().nth(at).cloned().unwrap_or_default();
                    fields.remove(&name);
                }
                1 => {
                    fields.insert(nasty(dice), nasty_json(dice));
                }
                _ => {
                    if let Some(inner) = fields.values_mut().nth(at) {
                        spoil(inner, dice);
                    }
                }
            }
        }
        Value::Array(values) if !values.is_empty() && dice.chance(70) => {
            let at = dice.below(values.len());
            spoil(&mut values[at], dice);
        }
        value => *value = nasty_json(dice),
    }
}
