//! JSON as the server writes it anew.
//!
//! What goes through the server is read and written by its library: blanks go, integers beyond 64 bits with a sign become
//! floats, floats look as Java writes them, and some signs are escaped.

use std::fmt::Write as _;

use serde_json::{Number, Value};

/// The text as it comes out of the server; one that is not JSON comes out as it is.
pub fn rewritten(text: &str) -> String {
    let Ok(json) = serde_json::from_str::<Value>(text) else { return text.to_owned() };
    let mut written = String::new();
    write(&json, &mut written);
    written
}

fn write(json: &Value, to: &mut String) {
    match json {
        Value::Null => to.push_str("null"),
        Value::Bool(yes) => to.push_str(if *yes { "true" } else { "false" }),
        Value::Number(number) => to.push_str(&self::number(number)),
        Value::String(text) => string(text, to),
        Value::Array(items) => {
            to.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    to.push(',');
                }
                write(item, to);
            }
            to.push(']');
        }
        Value::Object(fields) => {
            to.push('{');
            for (place, (name, value)) in fields.iter().enumerate() {
                if place > 0 {
                    to.push(',');
                }
                string(name, to);
                to.push(':');
                write(value, to);
            }
            to.push('}');
        }
    }
}

fn string(text: &str, to: &mut String) {
    to.push('"');
    for letter in text.chars() {
        match letter {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            '\u{8}' => to.push_str("\\b"),
            '\u{c}' => to.push_str("\\f"),
            '<' | '>' | '&' | '=' | '\'' | '\u{2028}' | '\u{2029}' | '\0'..'\u{20}' => {
                // Writing to a text does not fail.
                let _ = write!(to, "\\u{:04x}", u32::from(letter));
            }
            other => to.push(other),
        }
    }
    to.push('"');
}

/// An integer of 64 bits with a sign stays one.
fn number(number: &Number) -> String {
    match (number.as_i64(), number.as_f64()) {
        (Some(integer), _) => integer.to_string(),
        (None, Some(float)) => java(float),
        (None, None) => number.to_string(),
    }
}

/// A float as Java writes it.
fn java(float: f64) -> String {
    let size = float.abs();
    if size == 0.0 || (1e-3..1e7).contains(&size) {
        return format!("{float:?}");
    }
    let text = format!("{float:e}");
    match text.split_once('e') {
        Some((digits, power)) if digits.contains('.') => format!("{digits}E{power}"),
        Some((digits, power)) => format!("{digits}.0E{power}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::rewritten;

    /// All of these were seen at a real server.
    #[test]
    fn json_is_written_as_the_server_writes_it() {
        let cases = [
            ("18446744073709551615", "1.8446744073709552E19"),
            ("9223372036854775807", "9223372036854775807"),
            ("9223372036854775808", "9.223372036854776E18"),
            ("[8.0, 1e-05, 1e3]", "[8.0,1.0E-5,1000.0]"),
            (r#"{"b": null, "a": "<>&='"}"#, r#"{"b":null,"a":"\u003c\u003e\u0026\u003d\u0027"}"#),
            (r#"{"a":"#, r#"{"a":"#),
        ];
        for (text, written) in cases {
            assert_eq!(rewritten(text), written);
        }
    }
}
