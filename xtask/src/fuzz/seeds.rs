//! Where the fuzzer starts: what a real ComfyUI said, from the recordings that the tests use, and what is kept in `fuzz/seeds`:
//! small inputs that reach the depth of a parser, those that once broke one, and a selection of what earlier runs found
//! (`TARGET.hex`, one input on each line).
//!
//! From there it reaches the depth of a parser in seconds; from nothing it would need hours to find out
//! that there is a word like `execution_cached`.

use crate::run;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

const RECORDINGS: &str = "crates/comfyui-sim/tests/recordings";

/// A folder for each target.
const KEPT: &str = "fuzz/seeds";

/// Long inputs make the fuzzer slow and teach it little.
const LONGEST: usize = 16 * 1024;

/// Writes the seeds of a target into its corpus and returns how many there are.
pub(super) fn plant(target: &str, corpus: &Path) -> Result<usize> {
    let mut seeds = BTreeSet::new();
    for file in std::fs::read_dir(run::root().join(RECORDINGS)).context("cannot list the recordings")? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let recording = serde_json::from_slice(&text).with_context(|| format!("{}", path.display()))?;
            seeds.extend(seeds_of(target, &recording));
        }
    }
    seeds.retain(|seed| seed.len() <= LONGEST);
    std::fs::create_dir_all(corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
    for (seed, number) in seeds.iter().zip(1..) {
        std::fs::write(corpus.join(format!("recorded-{number:04}")), seed).context("cannot write a seed")?;
    }
    let kept = run::root().join(KEPT).join(target);
    let mut count = seeds.len();
    for file in kept.read_dir().into_iter().flatten() {
        let path = file?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        std::fs::copy(&path, corpus.join(format!("kept-{name}"))).context("cannot copy a seed")?;
        count += 1;
    }
    let found = std::fs::read_to_string(kept.with_extension("hex")).unwrap_or_default();
    for (line, number) in found.lines().zip(1..) {
        let input = bytes_of(line).with_context(|| format!("line {number} of {KEPT}/{target}.hex"))?;
        std::fs::write(corpus.join(format!("found-{number:04}")), input).context("cannot write a seed")?;
        count += 1;
    }
    Ok(count)
}

fn bytes_of(hex: &str) -> Result<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?)).collect()
}

fn seeds_of(target: &str, recording: &Value) -> Vec<Vec<u8>> {
    let empty = Vec::new();
    let list = |key| recording.get(key).and_then(Value::as_array).unwrap_or(&empty).iter();
    let part = |path| list("exchanges").filter_map(move |exchange| json(exchange.pointer(path)?));
    match target {
        "ws_message" => list("websocket").filter_map(frame).collect(),
        "history" => list("exchanges").filter(|exchange| is_history(exchange)).filter_map(answer).collect(),
        "lenient" => list("exchanges").filter_map(answer).collect(),
        "workflow" => part("/request/body/prompt").collect(),
        "guard" => part("/request/body").chain(part("/request/body/prompt")).collect(),
        // The first byte chooses the route: 1 is ComfyUI's own.
        "submit" => part("/request/body").map(|body| [&[1], body.as_slice()].concat()).collect(),
        _ => Vec::new(),
    }
}

/// Whether the answer is about prompts.
fn is_history(exchange: &Value) -> bool {
    let path = exchange.pointer("/request/path").and_then(Value::as_str).unwrap_or_default();
    ["/history", "/queue", "/jobs"].iter().any(|route| path.contains(route))
}

fn answer(exchange: &Value) -> Option<Vec<u8>> {
    let response = exchange.get("response")?;
    response.get("body").and_then(json).or_else(|| text(response.get("body_text")?))
}

/// A text frame, or the recorded beginning of a binary one.
fn frame(entry: &Value) -> Option<Vec<u8>> {
    let words = || entry.get("text").and_then(json).or_else(|| text(entry.get("text_raw")?));
    words().or_else(|| hex(entry.pointer("/binary/head_hex")?.as_str()?))
}

fn json(value: &Value) -> Option<Vec<u8>> {
    serde_json::to_vec(value).ok()
}

fn text(value: &Value) -> Option<Vec<u8>> {
    Some(value.as_str()?.as_bytes().to_vec())
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = digits.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    digits
        .chunks(2)
        .map(|pair| u8::try_from(pair.iter().fold(0, |sum, digit| sum * 16 + digit)).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_target_gets_what_it_reads() {
        let recording = json!({
            "exchanges": [
                {"request": {"path": "/prompt", "body": {"prompt": {"1": {}}}}, "response": {"body": {"number": 1}}},
                {"request": {"path": "/history/x"}, "response": {"body_text": "{\"x\": NaN}"}},
                {"request": {"path": "/queue"}, "failure": {"type": "timeout"}},
            ],
            "websocket": [{"text": {"type": "status"}}, {"text_raw": "NaN"}, {"binary": {"head_hex": "000000ff"}}, {"event": "open"}],
        });
        let seeds = |target| {
            let seeds = seeds_of(target, &recording).into_iter();
            seeds.map(|seed| String::from_utf8_lossy(&seed).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(seeds("workflow"), ["{\"1\":{}}"]);
        assert_eq!(seeds("history"), ["{\"x\": NaN}"]);
        assert_eq!(seeds("lenient"), ["{\"number\":1}", "{\"x\": NaN}"]);
        assert_eq!(seeds("ws_message"), ["{\"type\":\"status\"}", "NaN", "\0\0\0\u{fffd}"]);
    }
}
