//! One request: right first, and then, mostly, with one or two things wrong.

use super::routes::{Door, Route};
use super::values::{self, Known};
use crate::attacks::pictures;
use crate::dice::Dice;
use crate::stage::Keys;
use serde_json::{Value, json};

/// What is sent.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// Whether the key is a wrong one: such requests come from another address.
    pub(super) wrong_key: bool,
}

/// All keys, and no key.
#[derive(Debug, Clone)]
pub(super) struct Bunch {
    pub(super) keys: Keys,
    /// Keys of one scope each: submit, read.
    pub(super) narrow: Vec<String>,
}

const OWNER: &str = "5a5a5a5a-0000-4000-8000-0000000000ff";

pub(super) fn make(route: &Route, known: &Known, bunch: &Bunch, dice: &mut Dice) -> Made {
    // A third of all requests is right, so that there is something to be wrong about.
    let wrongs = [0, 1, 1, 1, 2, 0][dice.below(6)];
    let mut left = wrongs;
    let mut wrong_here = |dice: &mut Dice, percent| {
        let wrong = left > 0 && dice.chance(percent);
        left -= u32::from(wrong);
        wrong
    };
    let mut path = String::new();
    for (n, piece) in route.path.split('/').enumerate() {
        if n > 0 {
            path.push('/');
        }
        match piece.strip_prefix('{').and_then(|piece| piece.strip_suffix('}')) {
            Some(name) => {
                let name = name.trim_start_matches('*');
                let value = match wrong_here(dice, 12) {
                    true => values::nasty(dice),
                    false => values::right(name, known, dice),
                };
                path.push_str(&encoded(&value));
            }
            None => path.push_str(piece),
        }
    }
    let mut query = Vec::new();
    for name in &route.query {
        // What must be there is; the rest sometimes.
        if dice.chance(if matches!(name.as_str(), "fence" | "attempt" | "filename" | "worker" | "key") {
            98
        } else {
            40
        }) {
            let value = match wrong_here(dice, 20) {
                true => values::nasty(dice),
                false => values::right(name, known, dice),
            };
            if !(name == "before" && value.is_empty()) {
                query.push(format!("{name}={}", encoded(&value)));
            }
        }
    }
    if wrong_here(dice, 5) {
        query.push(format!("{}={}", encoded(&values::nasty(dice)), encoded(&values::nasty(dice))));
    }
    let mut headers = Vec::new();
    let (key, wrong_key) = key(route, bunch, dice);
    if let Some(key) = key {
        match dice.below(8) {
            0 => headers.push(("x-api-key".to_owned(), key)),
            _ => headers.push(("authorization".to_owned(), format!("Bearer {key}"))),
        }
    }
    if route.door == Door::Worker {
        let owner = if wrong_here(dice, 6) { values::nasty(dice) } else { OWNER.to_owned() };
        headers.push(("remuda-owner".to_owned(), owner));
    }
    if wrong_here(dice, 15) {
        let names = [
            "range",
            "if-none-match",
            "if-range",
            "prefer",
            "idempotency-key",
            "last-event-id",
            "content-encoding",
            "origin",
            "cookie",
            "accept",
            "accept-encoding",
            "x-forwarded-host",
            "x-forwarded-proto",
            "expect",
            "comfy-user",
            "remuda-owner",
        ];
        headers.push(((*dice.pick(&names)).to_owned(), values::nasty(dice)));
    } else if dice.chance(10) {
        headers.push(("range".to_owned(), format!("bytes={}-{}", dice.below(9), 9 + dice.below(99))));
    }
    let mut body = Vec::new();
    if route.method != "GET" && route.method != "HEAD" {
        let (kind, bytes) = body_of(route, known, left, dice);
        let kind = if left > 0 && dice.chance(6) { values::nasty(dice) } else { kind };
        headers.push(("content-type".to_owned(), kind));
        body = bytes;
    }
    // A header that no client could send says nothing about the server.
    headers.retain(|(_, value)| !value.is_empty() && value.bytes().all(|byte| (32..127).contains(&byte)));
    let method = match dice.chance(2) {
        true => {
            (*dice.pick(&["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"])).to_owned()
        }
        false => route.method.clone(),
    };
    let target = if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) };
    Made { method, target, headers, body, wrong_key }
}

fn key(route: &Route, bunch: &Bunch, dice: &mut Dice) -> (Option<String>, bool) {
    let fitting = match route.door {
        Door::Tenant if dice.chance(50) => &bunch.keys.bob,
        Door::Tenant => &bunch.keys.mallory,
        Door::Worker => &bunch.keys.worker,
        Door::Admin => &bunch.keys.admin,
    };
    match dice.below(100) {
        0..=79 => (Some(fitting.clone()), false),
        80..=86 => (Some(bunch.keys.admin.clone()), false),
        87..=92 => (Some(dice.pick(&bunch.narrow).clone()), false),
        93..=96 => (Some(bunch.keys.worker.clone()), false),
        97..=98 => (None, true),
        _ => (Some(format!("rmd_{:064x}", dice.next())), true),
    }
}

fn body_of(route: &Route, known: &Known, wrongs: u32, dice: &mut Dice) -> (String, Vec<u8>) {
    let path = route.path.as_str();
    if path.ends_with("/upload/image") || path.ends_with("/upload/mask") {
        return form(path.ends_with("mask"), wrongs, dice);
    }
    let raw = || ("application/octet-stream".to_owned(), b"fuzz".to_vec());
    if path.contains("/assets") || path.contains("/outputs/") || path.contains("frames") {
        let (kind, mut bytes) = raw();
        if path.contains("frames") {
            let head = json!({"task": values::right("id", known, dice), "attempt": 1, "what": {"type": "progress", "fraction": 0.5,
                "node": "1", "value": 1.0, "max": 2.0, "nodes_done": 1, "nodes": 2}, "payload": 0}).to_string();
            bytes = (head.len() as u32).to_be_bytes().to_vec();
            bytes.extend_from_slice(head.as_bytes());
        }
        if wrongs > 0 {
            flip(&mut bytes, dice);
        }
        return (kind, bytes);
    }
    let mut value = json_of(path, known, dice);
    for _ in 0..wrongs {
        values::spoil(&mut value, dice);
    }
    let mut bytes = value.to_string().into_bytes();
    if wrongs > 0 && dice.chance(10) {
        flip(&mut bytes, dice);
    }
    ("application/json".to_owned(), bytes)
}

/// The right body of a route.
fn json_of(path: &str, known: &Known, dice: &mut Dice) -> Value {
    let task = values::right("id", known, dice);
    let prompt = values::right("prompt", known, dice);
    let lease = json!({"task": task, "fence": 1 + dice.below(3)});
    let later = "2999-01-01T00:00:00Z";
    match path.trim_start_matches("/api") {
        // Most wait for ever: the fuzzer is about the door, not about the GPU.
        "/v1/tasks" if dice.chance(90) => {
            json!({"payload": values::graph(dice), "not_before": later, "priority": dice.below(10),
            "metadata": {"n": dice.below(9)}, "labels": [], "max_retries": 1, "timeout_s": 30, "workflow_id": "fuzz"})
        }
        "/v1/tasks" => json!({"payload": values::graph(dice)}),
        "/prompt" => {
            json!({"prompt": values::graph(dice), "client_id": "fuzz", "extra_data": {"extra_pnginfo": {}}, "front": false})
        }
        "/prompt_sync" => json!({"prompt": values::graph(dice), "timeout": 5}),
        "/queue" | "/history" => json!({"delete": [prompt]}),
        "/jobs/cancel" => json!({"job_ids": [prompt]}),
        "/interrupt" => json!({"prompt_id": prompt}),
        "/free" => json!({"unload_models": true}),
        "/settings" => json!({"Fuzz.A": 1, "Fuzz.B": "b"}),
        "/internal/logs/subscribe" => json!({"clientId": "fuzz", "enabled": true}),
        "/v1/worker/acquire" => {
            json!({"spec": {"id": "fuzz", "endpoint": "http://127.0.0.1:9", "name": null, "labels": ["fuzz"]}})
        }
        "/v1/worker/release" => json!({"worker": "fuzz", "fence": 1}),
        "/v1/worker/claim" => {
            json!({"worker": "fuzz", "worker_fence": 1, "capabilities": {"labels": ["fuzz"], "nodes": [], "models": []},
            "wait_ms": 1})
        }
        "/v1/worker/adopt" => json!({"worker": "fuzz", "worker_fence": 1, "known": [lease]}),
        "/v1/worker/beat" => {
            json!({"leases": [{"lease": lease, "phase": "rendering", "progress": 0.5}], "workers": [], "wait_ms": 1})
        }
        "/v1/worker/end" => json!({"lease": lease, "ending": {"how": "cancelled"}}),
        "/v1/worker/give-back" => json!({"lease": lease}),
        path if path.contains("/settings/") => json!("value"),
        _ => json!({}),
    }
}

fn form(mask: bool, wrongs: u32, dice: &mut Dice) -> (String, Vec<u8>) {
    let boundary = "fuzz-boundary";
    let mut fields = vec![("type", "input".to_owned()), ("overwrite", "true".to_owned())];
    if mask {
        fields.push((
            "original_ref",
            json!({"filename": "fuzz.png", "type": "input", "subfolder": ""}).to_string(),
        ));
    }
    let mut name = "fuzz.png".to_owned();
    let mut picture = pictures::plain().unwrap_or_default();
    for _ in 0..wrongs {
        match dice.below(4) {
            0 => name = values::nasty(dice).replace(['\r', '\n', '"'], ""),
            1 => flip(&mut picture, dice),
            2 => {
                let at = dice.below(fields.len());
                fields[at].1 = values::nasty(dice);
            }
            _ => fields.push(("subfolder", values::nasty(dice))),
        }
    }
    let mut body = Vec::new();
    for (field, value) in fields {
        let part =
            format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{field}\"\r\n\r\n{value}\r\n");
        body.extend_from_slice(part.as_bytes());
    }
    let part = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\n\r\n"
    );
    body.extend_from_slice(part.as_bytes());
    body.extend_from_slice(&picture);
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    if wrongs > 0 && dice.chance(15) {
        flip(&mut body, dice);
    }
    (format!("multipart/form-data; boundary={boundary}"), body)
}

/// Changes, removes or doubles some bytes.
pub(super) fn flip(bytes: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..1 + dice.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = dice.below(bytes.len());
        match dice.below(4) {
            0 => bytes.truncate(at),
            1 => bytes[at] = dice.next() as u8,
            2 => bytes.insert(at, dice.next() as u8),
            _ => {
                bytes.remove(at);
            }
        }
    }
}

/// Everything but letters, digits and a few signs in percent form.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}
