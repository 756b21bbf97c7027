//! Comparison of what came with what was recorded, and a readable account of the differences.

use crate::names::Names;
use crate::volatile::{Rule, rule_for};
use serde_json::Value;
use std::fmt;

/// One difference.
#[derive(Debug, Clone)]
pub struct Difference {
    /// Exchange or socket.
    pub place: String,
    /// Where inside of it.
    pub path: String,
    pub expected: String,
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}\n    at {}\n    expected {}\n    got      {}",
            self.place,
            self.path,
            shorten(&self.expected),
            shorten(&self.got)
        )
    }
}

fn shorten(text: &str) -> String {
    const LIMIT: usize = 400;
    match text.char_indices().nth(LIMIT) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}… ({} bytes)", &text[..at], text.len()),
    }
}

/// Collects the differences of one document.
pub struct Comparison<'a> {
    pub place: String,
    pub names: &'a mut Names,
    pub differences: Vec<Difference>,
}

impl<'a> Comparison<'a> {
    pub fn new(place: impl Into<String>, names: &'a mut Names) -> Self {
        Self { place: place.into(), names, differences: Vec::new() }
    }

    /// Notes a difference.
    pub fn differ(&mut self, path: &str, expected: impl fmt::Display, got: impl fmt::Display) {
        self.differences.push(Difference {
            place: self.place.clone(),
            path: path.to_owned(),
            expected: expected.to_string(),
            got: got.to_string(),
        });
    }

    /// Compares two values that must be equal.
    pub fn same<T: PartialEq + fmt::Debug>(&mut self, path: &str, expected: T, got: T) {
        if expected != got {
            self.differ(path, format_args!("{expected:?}"), format_args!("{got:?}"));
        }
    }

    /// Compares two documents up to what may differ. Names must be translated already.
    pub fn json(&mut self, expected: &Value, got: &Value) {
        self.value(&mut Vec::new(), expected, got);
    }

    fn value(&mut self, path: &mut Vec<String>, expected: &Value, got: &Value) {
        let rule = rule_for(path);
        if let Some(rule) = rule
            && applies(rule, expected, got)
        {
            return;
        }
        let any_order = rule == Some(Rule::AnyOrder);
        match (expected, got) {
            (Value::Object(expected), Value::Object(got)) => {
                let mut expected_keys: Vec<&String> = expected.keys().collect();
                let mut got_keys: Vec<&String> = got.keys().collect();
                if any_order {
                    expected_keys.sort();
                    got_keys.sort();
                }
                if expected_keys != got_keys {
                    self.differ(
                        &format!("/{} (keys)", path.join("/")),
                        format_args!("{expected_keys:?}"),
                        format_args!("{got_keys:?}"),
                    );
                }
                for (key, value) in expected {
                    if let Some(other) = got.get(key) {
                        path.push(key.clone());
                        self.value(path, value, other);
                        path.pop();
                    }
                }
            }
            (Value::Array(expected), Value::Array(got)) => {
                if expected.len() != got.len() {
                    let expected = Value::Array(expected.clone());
                    let got = Value::Array(got.clone());
                    self.differ(&format!("/{} (length)", path.join("/")), expected, got);
                    return;
                }
                let (mut expected, mut got): (Vec<&Value>, Vec<&Value>) =
                    (expected.iter().collect(), got.iter().collect());
                if any_order {
                    expected.sort_by_key(|value| identity(value));
                    got.sort_by_key(|value| identity(value));
                }
                for (index, (value, other)) in expected.into_iter().zip(got).enumerate() {
                    path.push(index.to_string());
                    self.value(path, value, other);
                    path.pop();
                }
            }
            (Value::String(text), Value::String(other))
                if text != other && self.names.learn_temporary(text, other) => {}
            _ if expected == got => {}
            _ => self.differ(&format!("/{}", path.join("/")), expected, got),
        }
    }
}

/// What tells the elements of an unordered list apart.
fn identity(value: &Value) -> String {
    match value.get("details") {
        Some(details) => details.to_string(),
        None => value.to_string(),
    }
}

fn applies(rule: Rule, expected: &Value, got: &Value) -> bool {
    match rule {
        Rule::Clock => is_time(expected) && is_time(got),
        Rule::Type => std::mem::discriminant(expected) == std::mem::discriminant(got),
        Rule::AnyOrder => false,
        Rule::Traceback => match (calls(expected), calls(got)) {
            (Some(expected), Some(got)) => expected == got,
            _ => false,
        },
    }
}

/// File name and function of every line of a Python traceback.
fn calls(traceback: &Value) -> Option<Vec<(String, String)>> {
    let lines = traceback.as_array()?.iter();
    lines
        .map(|line| {
            let (file, rest) = line.as_str()?.strip_prefix("  File \"")?.split_once("\", line ")?;
            let function = rest.split_once(", in ")?.1.lines().next()?;
            Some((file.rsplit('/').next()?.to_owned(), function.to_owned()))
        })
        .collect()
}

fn is_time(value: &Value) -> bool {
    // Between 2001 and 2286: thirteen digits.
    value.as_u64().is_some_and(|time| (1_000_000_000_000..10_000_000_000_000).contains(&time))
}
