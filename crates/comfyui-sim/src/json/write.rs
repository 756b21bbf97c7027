//! Writing: `json.dumps` with its defaults, `repr` and `str`.

use super::Json;
use std::fmt::{self, Write};

impl Json {
    /// The text of `json.dumps(value)`.
    pub fn dump(&self) -> String {
        let mut out = String::new();
        write_json(self, &mut out);
        out
    }

    /// The text of `repr(value)`, which ComfyUI's error texts embed.
    pub fn repr(&self) -> String {
        let mut out = String::new();
        write_repr(self, &mut out);
        out
    }

    /// The text of `str(value)`: `repr`, except that a text stands for itself.
    pub fn str(&self) -> String {
        match self {
            Json::Str(text) => text.clone(),
            _ => self.repr(),
        }
    }

    /// Compact text with sorted keys: the same for every order of keys, made to be hashed.
    pub fn canonical(&self) -> String {
        let mut out = String::new();
        write_canonical(self, &mut out);
        out
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.dump())
    }
}

/// Puts `item` for each of `values` with `between` in between.
fn separated<T>(
    out: &mut String,
    between: &str,
    values: impl IntoIterator<Item = T>,
    mut item: impl FnMut(&mut String, T),
) {
    for (index, value) in values.into_iter().enumerate() {
        if index > 0 {
            out.push_str(between);
        }
        item(out, value);
    }
}

fn write_json(value: &Json, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Json::Int(value) => out.push_str(&value.to_string()),
        Json::BigInt(digits) => out.push_str(digits),
        Json::Float(value) => out.push_str(&json_float(*value)),
        Json::Str(text) => write_quoted(text, out),
        Json::List(values) => {
            out.push('[');
            separated(out, ", ", values, |out, value| write_json(value, out));
            out.push(']');
        }
        Json::Dict(members) => {
            out.push('{');
            separated(out, ", ", members, |out, (key, value)| {
                write_quoted(key, out);
                out.push_str(": ");
                write_json(value, out);
            });
            out.push('}');
        }
    }
}

fn write_canonical(value: &Json, out: &mut String) {
    match value {
        Json::List(values) => {
            out.push('[');
            separated(out, ",", values, |out, value| write_canonical(value, out));
            out.push(']');
        }
        Json::Dict(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by(|left, right| left.0.cmp(right.0));
            out.push('{');
            separated(out, ",", sorted, |out, (key, value)| {
                write_quoted(key, out);
                out.push(':');
                write_canonical(value, out);
            });
            out.push('}');
        }
        scalar => write_json(scalar, out),
    }
}

fn write_repr(value: &Json, out: &mut String) {
    match value {
        Json::Null => out.push_str("None"),
        Json::Bool(value) => out.push_str(if *value { "True" } else { "False" }),
        Json::Int(value) => out.push_str(&value.to_string()),
        Json::BigInt(digits) => out.push_str(digits),
        Json::Float(value) => out.push_str(&repr_float(*value)),
        Json::Str(text) => out.push_str(&repr_str(text)),
        Json::List(values) => {
            out.push('[');
            separated(out, ", ", values, |out, value| write_repr(value, out));
            out.push(']');
        }
        Json::Dict(members) => {
            out.push('{');
            separated(out, ", ", members, |out, (key, value)| {
                out.push_str(&repr_str(key));
                out.push_str(": ");
                write_repr(value, out);
            });
            out.push('}');
        }
    }
}

fn write_quoted(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(letter),
            _ => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

fn json_float(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        repr_float(value)
    }
}

/// Python's `repr` of a float: shortest digits that read back, exponent outside 1e-4..1e16.
pub fn repr_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    }
}

/// Python's `repr` of a text: single quotes unless only double quotes spare escapes.
pub fn repr_str(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if letter == quote => {
                out.push('\\');
                out.push(letter);
            }
            ' '..='~' => out.push(letter),
            _ if is_printable(letter) => out.push(letter),
            _ => {
                let code = u32::from(letter);
                // Writing to a string cannot fail.
                let _ = match code {
                    0..=0xFF => write!(out, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
    out
}

/// Close to Python's `str.isprintable`: Rust's own tables, asked in a place where a combining mark
/// counts as printable. Spaces other than the plain one do not.
fn is_printable(letter: char) -> bool {
    if letter.is_control() || letter.is_whitespace() {
        return false;
    }
    let mut probe = String::from("a");
    probe.push(letter);
    probe.escape_debug().nth(1) == Some(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_look_like_pythons() {
        for (value, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
        ] {
            assert_eq!(repr_float(value), expected);
        }
    }

    #[test]
    fn texts_look_like_pythons() {
        assert_eq!(
            Json::from("a\"\\/\u{7f}\u{1}é€😀\n").dump(),
            r#""a\"\\/\u007f\u0001\u00e9\u20ac\ud83d\ude00\n""#
        );
        assert_eq!(repr_str("it's"), "\"it's\"");
        assert_eq!(repr_str("it's \"so\""), "'it\\'s \"so\"'");
        assert_eq!(
            repr_str("é😀\u{301}\u{a0}\u{200b}\u{1}\u{e000}\u{10ffff}"),
            "'é😀\u{301}\\xa0\\u200b\\x01\\ue000\\U0010ffff'"
        );
        let value = Json::parse(br#"{"a": [null, true, false, 1, 1.0, "x"], "b": {}}"#).unwrap();
        assert_eq!(value.repr(), "{'a': [None, True, False, 1, 1.0, 'x'], 'b': {}}");
        assert_eq!(Json::from("x").str(), "x");
    }

    #[test]
    fn canonical_text_ignores_key_order() {
        let left = Json::parse(br#"{"b": 1, "a": {"d": 2, "c": [3, 4]}}"#).unwrap();
        let right = Json::parse(br#"{"a": {"c": [3, 4], "d": 2}, "b": 1}"#).unwrap();
        assert_eq!(left.canonical(), r#"{"a":{"c":[3,4],"d":2},"b":1}"#);
        assert_eq!(left.canonical(), right.canonical());
    }
}
