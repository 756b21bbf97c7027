//! The state a recording begins with: most were made on a server that had been running for a while.

use crate::recording::{Answer, AnswerBody, Exchange, FrameKind, Outcome, Recording, RequestBody};
use crate::{bodies, json};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Something that was done to the server, not through it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Hook {
    /// A file of the output folder was removed.
    RemoveOutput(&'static str),
    /// SIGTERM.
    Terminate,
    /// Started again after its end.
    StartAgain,
    /// SIGINT.
    Interrupt,
}

/// What was done to the server before the exchange with that number (or after the last one).
const HOOKS: &[(&str, usize, Hook)] = &[
    ("cached_file_deleted", 3, Hook::RemoveOutput("rig/gone_00001_.png")),
    ("restart", 7, Hook::Terminate),
    ("restart", 8, Hook::StartAgain),
    ("shutdown_sigint", 1, Hook::Interrupt),
];

/// The hooks of one recording before one exchange.
pub fn hooks<'a>(recording: &'a str, exchange: usize) -> impl Iterator<Item = Hook> + 'a {
    HOOKS.iter().filter(move |(name, at, _)| *name == recording && *at == exchange).map(|(_, _, hook)| *hook)
}

/// How many counted but refused submissions have to be sent before each exchange, so that the server's counter
/// gives the recorded numbers.
pub fn counter_bumps(recording: &Recording) -> Vec<u64> {
    let mut bumps = vec![0; recording.exchanges.len()];
    let mut counter = 0;
    // Submissions whose numbers are not known yet belong before the first known one.
    let mut unknown_since = None;
    for (index, exchange) in recording.exchanges.iter().enumerate() {
        if hooks(&recording.name, index).any(|hook| hook == Hook::StartAgain) {
            counter = 0;
            unknown_since = None;
        }
        if !is_counted(exchange) {
            continue;
        }
        let since = *unknown_since.get_or_insert(index);
        if let Some(number) = recorded_number(exchange) {
            bumps[since] += number.saturating_sub(counter);
            counter = counter.max(number);
            unknown_since = None;
        }
        counter += 1;
    }
    bumps
}

/// Whether the server's counter grew: a submission that could be read and brought no number of its own.
fn is_counted(exchange: &Exchange) -> bool {
    if exchange.request.method != "POST" || !exchange.request.path.ends_with("/prompt") {
        return false;
    }
    let document = match &exchange.request.body {
        RequestBody::Json(value) => Some(value.clone()),
        RequestBody::Text(text) => json::parse(text).ok(),
        // The raw requests bring no number; a server that could read one answers something else than 500.
        RequestBody::Raw(_) => match &exchange.outcome {
            Outcome::Answer(answer) if answer.status != 500 => Some(Value::Object(Default::default())),
            _ => None,
        },
        RequestBody::None if bodies::left_out(&exchange.note).is_some() => match &exchange.outcome {
            Outcome::Answer(answer) if answer.status == 200 => Some(Value::Object(Default::default())),
            _ => None,
        },
        _ => None,
    };
    match document {
        Some(Value::Object(map)) => !map.contains_key("number"),
        Some(Value::Array(_) | Value::String(_)) => true,
        _ => false,
    }
}

/// The counter's value in the answer to a submission, if the answer tells it.
fn recorded_number(exchange: &Exchange) -> Option<u64> {
    let Outcome::Answer(Answer { body, raw, .. }) = &exchange.outcome else {
        return None;
    };
    let document = match (body, raw) {
        (AnswerBody::Json(value), _) => value.clone(),
        (AnswerBody::Text(text), Some(_)) => {
            let start = text.rfind("{\"prompt_id\"")?;
            json::parse(&text[start..]).ok()?
        }
        _ => return None,
    };
    document["number"].as_i64().map(i64::unsigned_abs)
}

/// Puts the files there that the recording takes for granted.
pub fn seed_files(recording: &Recording, base: &Path) {
    for folder in ["input", "output", "temp"] {
        std::fs::create_dir_all(base.join(folder)).expect("the temporary folder can be written");
    }
    for (folder, prefix, lowest) in counted_outputs(recording) {
        if lowest > 1 {
            let folder = base.join("output").join(folder);
            std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
            let name = format!("{prefix}_{:05}_.png", lowest - 1);
            std::fs::write(folder.join(name), b"saved earlier").expect("the temporary folder can be written");
        }
    }
    match recording.name.as_str() {
        "upload_name_with_folder" => {
            std::fs::create_dir_all(base.join("input/existing"))
                .expect("the temporary folder can be written");
        }
        "view" => seed_viewed_files(recording, base),
        _ => {}
    }
}

/// Folder, prefix and lowest counter of every file that SaveImage and its like reported.
fn counted_outputs(recording: &Recording) -> Vec<(String, String, u64)> {
    let mut lowest: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut note = |value: &Value| {
        let (Some(filename), Some("output")) = (value["filename"].as_str(), value["type"].as_str()) else {
            return;
        };
        let Some((stem, _)) = filename.rsplit_once("_.") else {
            return;
        };
        let Some((prefix, counter)) = stem.rsplit_once('_') else {
            return;
        };
        let (Ok(counter), folder) = (counter.parse::<u64>(), value["subfolder"].as_str().unwrap_or_default())
        else {
            return;
        };
        let entry = lowest.entry((folder.to_owned(), prefix.to_owned())).or_insert(counter);
        *entry = counter.min(*entry);
    };
    for exchange in &recording.exchanges {
        if let Outcome::Answer(Answer { body: AnswerBody::Json(value), .. }) = &exchange.outcome {
            each_object(value, &mut note);
        }
    }
    for frame in &recording.frames {
        if let FrameKind::Text(value) = &frame.kind {
            each_object(value, &mut note);
        }
    }
    lowest.into_iter().map(|((folder, prefix), counter)| (folder, prefix, counter)).collect()
}

fn each_object(value: &Value, note: &mut impl FnMut(&Value)) {
    match value {
        Value::Object(map) => {
            note(value);
            map.values().for_each(|value| each_object(value, note));
        }
        Value::Array(list) => list.iter().for_each(|value| each_object(value, note)),
        _ => {}
    }
}

/// Files of many kinds that were written by a test node of which no request is recorded: their content is known
/// from the answers.
fn seed_viewed_files(recording: &Recording, base: &Path) {
    let folder = base.join("output/rigtypes");
    std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
    for exchange in &recording.exchanges {
        let Some(query) = exchange.request.path.strip_prefix("/view?filename=") else {
            continue;
        };
        let Some((name, _)) = query.split_once("&subfolder=rigtypes") else {
            continue;
        };
        let Outcome::Answer(answer) = &exchange.outcome else {
            continue;
        };
        let content = match &answer.body {
            AnswerBody::Binary { head, .. } => head.clone(),
            AnswerBody::Text(text) => text.clone().into_bytes(),
            AnswerBody::Json(value) => value.to_string().into_bytes(),
            _ => continue,
        };
        std::fs::write(folder.join(name), content).expect("the temporary folder can be written");
    }
}

/// Prompts that had run before the first exchange: the number of the first one, and bodies of submissions.
pub fn earlier_prompts(recording: &Recording) -> (u64, Vec<Value>) {
    if recording.name != "history_states" {
        return (0, Vec::new());
    }
    let whole = recording.exchanges.iter().find(|exchange| exchange.request.path == "/history?max_items=100");
    let Some(Outcome::Answer(Answer { body: AnswerBody::Json(Value::Object(entries)), .. })) =
        whole.map(|whole| &whole.outcome)
    else {
        panic!("history_states has no answer with the whole history");
    };
    let bodies = entries.values().map(|entry| {
        let item = &entry["prompt"];
        let mut extra = item[3].clone();
        if let Some(extra) = extra.as_object_mut() {
            extra.remove("create_time");
        }
        serde_json::json!({"prompt": item[2], "prompt_id": item[1], "extra_data": extra})
    });
    let first = entries.values().next().and_then(|entry| entry["prompt"][0].as_u64());
    (first.expect("an entry"), bodies.collect())
}
