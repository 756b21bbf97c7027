//! Comparison of an answer with the recorded one.

use crate::compare::Comparison;
use crate::http::Received;
use crate::recording::{Answer, AnswerBody, Request};
use crate::volatile::VOLATILE_HEADERS;
use crate::{bodies, http, json};
use sha2::{Digest, Sha256};
use std::net::SocketAddr;

/// Compares status, reason, headers and body, and learns the names that the server chose.
pub fn compare(comparison: &mut Comparison<'_>, request: &Request, expected: &Answer, got: &Received) {
    comparison.same("status", expected.status, got.status);
    if expected.status != got.status {
        comparison.differ("body", describe(&expected.body), String::from_utf8_lossy(&got.body));
        return;
    }
    comparison.same("reason", expected.reason.clone().unwrap_or_default(), got.reason.clone());
    headers(comparison, request, expected, got);
    let content = match got.content() {
        Ok(content) => content,
        Err(error) => return comparison.differ("body", "a readable body", error),
    };
    let is_json = got.header("content-type").is_some_and(|kind| kind.starts_with("application/json"));
    match &expected.body {
        AnswerBody::Empty => comparison.same("length of the body", 0, content.len()),
        AnswerBody::Json(value) => json_body(comparison, value, &content),
        AnswerBody::Text(text) if is_json => match json::parse(text) {
            Ok(value) => json_body(comparison, &value, &content),
            Err(error) => panic!("{}: recorded answer: {error}", comparison.place),
        },
        AnswerBody::Text(text) => {
            let text = comparison.names.translate(text);
            comparison.same("body", text, String::from_utf8_lossy(&content).into_owned());
        }
        AnswerBody::Binary { len, sha256, head } => {
            binary(comparison, request, (*len, sha256, head), &content)
        }
        AnswerBody::Omitted { why } => {
            if is_json && let Err(error) = json::parse(&String::from_utf8_lossy(&content)) {
                comparison.differ("body", why, error);
            }
        }
    }
}

fn describe(body: &AnswerBody) -> String {
    match body {
        AnswerBody::Json(value) => value.to_string(),
        AnswerBody::Text(text) => text.clone(),
        AnswerBody::Binary { len, .. } => format!("{len} bytes"),
        AnswerBody::Omitted { why } => why.clone(),
        AnswerBody::Empty => "nothing".to_owned(),
    }
}

fn headers(comparison: &mut Comparison<'_>, request: &Request, expected: &Answer, got: &Received) {
    let mut expected_names: Vec<String> = expected.headers.iter().map(|(name, _)| name.clone()).collect();
    // Every answer has a date, which was not recorded.
    expected_names.push("date".to_owned());
    expected_names.sort();
    let mut got_names: Vec<String> = got.headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    got_names.sort();
    comparison.same("names of the headers", expected_names, got_names);
    for (name, value) in &expected.headers {
        let Some(actual) = got.header(name) else { continue };
        if name == "etag" {
            comparison.names.learn(value, actual);
        }
        if name == "content-length" && request.method != "HEAD" && actual.parse() != Ok(got.body.len()) {
            comparison.differ("header content-length", got.body.len(), actual);
        }
        if name == "content-range" {
            // The size of a file that was made by another encoder is another.
            let range = |text: &str| text.split('/').next().unwrap_or_default().to_owned();
            comparison.same("header content-range", range(value), range(actual));
        } else if !VOLATILE_HEADERS.iter().any(|(volatile, _)| volatile == name) {
            let value = comparison.names.translate(value);
            comparison.same(&format!("header {name}"), value.as_str(), actual);
        }
    }
}

fn json_body(comparison: &mut Comparison<'_>, expected: &serde_json::Value, content: &[u8]) {
    let text = String::from_utf8_lossy(content);
    if let Some(fault) = json::not_as_python_writes(&text) {
        comparison.differ("body", "JSON as Python writes it", fault);
    }
    match json::parse(&text) {
        Ok(mut got) => {
            remove_prose(&mut got);
            if let (Some(recorded), Some(actual)) =
                (expected["prompt_id"].as_str(), got["prompt_id"].as_str())
            {
                comparison.names.learn(recorded, actual);
            }
            let expected = comparison.names.translate_json(expected);
            comparison.json(&expected, &got);
        }
        Err(error) => comparison.differ("body", expected, format_args!("{error}: {text}")),
    }
}

/// ComfyUI's explanations were taken out of the recordings; a real server still gives them.
fn remove_prose(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => {
            map.retain(|key, _| key != "tooltip" && key != "output_tooltips");
            for (key, value) in map {
                if key == "description" && value.is_string() {
                    *value = "".into();
                } else {
                    remove_prose(value);
                }
            }
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(remove_prose),
        _ => {}
    }
}

fn binary(
    comparison: &mut Comparison<'_>,
    request: &Request,
    expected: (usize, &str, &[u8]),
    content: &[u8],
) {
    let (len, sha256, head) = expected;
    if bodies::hex(&Sha256::digest(content)) == sha256 {
        return;
    }
    let uploaded_whole = request.path.contains("type=input") && !request.path.contains("input.mp4");
    if uploaded_whole || len <= head.len() || content.len() < 16 {
        let (expected, got) = (bodies::hex(head), bodies::hex(&content[..content.len().min(head.len())]));
        comparison.differ(
            "body",
            format_args!("{len} bytes {expected}"),
            format_args!("{} bytes {got}", content.len()),
        );
        return;
    }
    if request.headers.iter().any(|(name, _)| name == "range") {
        comparison.same("length of the range", len, content.len());
    }
    comparison.same("kind of file", kind_of_file(head), kind_of_file(content));
}

/// Files made by other encoders are not equal, but of the same kind; pictures have the same size and colours.
fn kind_of_file(bytes: &[u8]) -> String {
    let at = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => format!("PNG {}", bodies::hex(at(16..26))),
        [0xff, 0xd8, 0xff, ..] => "JPEG".to_owned(),
        [0x1a, 0x45, 0xdf, 0xa3, ..] => "Matroska".to_owned(),
        _ if at(0..4) == b"RIFF" => format!("RIFF {}", String::from_utf8_lossy(at(8..12))),
        _ if at(4..8) == b"ftyp" => "ISO media".to_owned(),
        // The head of a safetensors file is the length of its JSON.
        _ if at(8..10) == b"{\"" => "safetensors".to_owned(),
        _ => String::from_utf8_lossy(at(0..4)).into_owned(),
    }
}

/// Sends a request as it was recorded byte for byte and compares all that comes back, headers included.
pub async fn compare_raw(
    comparison: &mut Comparison<'_>,
    server: SocketAddr,
    request: &str,
    expected: &Answer,
) {
    let Some((head, closed)) = &expected.raw else {
        return;
    };
    let AnswerBody::Text(body) = &expected.body else {
        return;
    };
    let expected = format!("{head}\r\n\r\n{body}");
    let answers = expected.matches("HTTP/1.").count();
    match http::send_raw(server, &bodies::raw(request), answers).await {
        Ok((bytes, got_closed)) => {
            let got = String::from_utf8_lossy(&bytes).into_owned();
            comparison.same("bytes of the answer", without_volatile(&expected), without_volatile(&got));
            comparison.same("closed by the server", *closed, got_closed);
        }
        Err(error) => comparison.differ("answer", expected, error),
    }
}

/// The date was not recorded everywhere, and ids are the server's choice.
fn without_volatile(text: &str) -> String {
    let lines = text.split("\r\n").filter(|line| !line.starts_with("Date: "));
    lines.map(mask_ids).collect::<Vec<_>>().join("\r\n")
}

fn mask_ids(line: &str) -> String {
    const MARK: &str = "\"prompt_id\": \"";
    match line.split_once(MARK) {
        Some((before, after)) if after.len() >= 36 => format!("{before}{MARK}(id){}", &after[36..]),
        _ => line.to_owned(),
    }
}
