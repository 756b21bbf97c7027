//! Reading JSON the way ComfyUI writes it.
//!
//! Python's `json` module writes bare `NaN`, `Infinity` and `-Infinity`, which are not JSON, and ComfyUI lets
//! them through in the history, in job lists, in the answer of `POST /prompt` and in websocket frames. The
//! functions here parse strictly first, so ordinary answers pay nothing, and only when that fails replace the
//! bare words by `null` and parse once more.
//!
//! ```
//! use serde_json::{Value, json};
//!
//! let read: Value = comfyui::lenient::from_str(r#"{"loss": NaN, "text": "NaN stays"}"#)?;
//! assert_eq!(read, json!({"loss": null, "text": "NaN stays"}));
//! # Ok::<(), serde_json::Error>(())
//! ```

use std::borrow::Cow;

use serde::de::{Deserialize, DeserializeOwned, Deserializer};

/// The words Python writes for numbers JSON cannot hold, longest first so that the sign is taken along.
const NON_FINITE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Parses bytes as JSON and reads bare `NaN`, `Infinity` and `-Infinity` as `null`.
///
/// Raw parts (`Box<RawValue>`) of the result are valid JSON: they hold the `null` as well.
///
/// ```
/// let read: Vec<Option<f64>> = comfyui::lenient::from_slice(b"[1.5, -Infinity]")?;
/// assert_eq!(read, [Some(1.5), None]);
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// # Errors
///
/// The error of `serde_json` when the text is not JSON even so, or does not fit `T`.
pub fn from_slice<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(json).or_else(|strict| match replace_non_finite(json) {
        Cow::Borrowed(_) => Err(strict),
        Cow::Owned(repaired) => serde_json::from_slice(&repaired),
    })
}

/// Parses a text as JSON and reads bare `NaN`, `Infinity` and `-Infinity` as `null`; see [`from_slice`].
///
/// # Errors
///
/// The error of `serde_json` when the text is not JSON even so, or does not fit `T`.
pub fn from_str<T: DeserializeOwned>(json: &str) -> Result<T, serde_json::Error> {
    from_slice(json.as_bytes())
}

/// Replaces bare `NaN`, `Infinity` and `-Infinity` outside strings by `null`; borrows when there are none.
///
/// Everything else is copied as it is, whether it is JSON or not.
///
/// ```
/// use comfyui::lenient::replace_non_finite;
///
/// assert_eq!(replace_non_finite(br#"["NaN", NaN]"#).as_ref(), br#"["NaN", null]"#);
/// ```
pub fn replace_non_finite(json: &[u8]) -> Cow<'_, [u8]> {
    let mut repaired = Vec::new();
    let mut copied = 0;
    for (at, word) in non_finite_words(json) {
        repaired.extend_from_slice(&json[copied..at]);
        repaired.extend_from_slice(b"null");
        copied = at + word.len();
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    repaired.extend_from_slice(&json[copied..]);
    Cow::Owned(repaired)
}

/// How many values a JSON text holds, down to this many levels of lists and objects, at most; keys are not counted.
///
/// One pass without memory of its own: it tells before parsing how much parsing would take. Texts that are not JSON
/// get a number as well.
///
/// ```
/// use comfyui::lenient::count_values;
///
/// assert_eq!(count_values(br#"{"a": [1, 2, "x,y"], "b": {}}"#, usize::MAX), 6);
/// assert_eq!(count_values(br#"{"a": [1, 2, "x,y"], "b": {}}"#, 1), 3);
/// ```
pub fn count_values(json: &[u8], depth: usize) -> usize {
    let mut level = 0usize;
    let mut count = 1;
    let mut at = 0;
    // Whether a list or an object was opened and nothing stood in it yet.
    let mut opened = false;
    while let Some(&byte) = json.get(at) {
        if opened && !byte.is_ascii_whitespace() {
            opened = false;
            count += usize::from(!matches!(byte, b']' | b'}') && level <= depth);
        }
        match byte {
            b'"' => {
                at = end_of_string(json, at);
                continue;
            }
            b'[' | b'{' => {
                level += 1;
                opened = true;
            }
            b']' | b'}' => level = level.saturating_sub(1),
            b',' => count += usize::from(level <= depth),
            _ => {}
        }
        at += 1;
    }
    count
}

/// How long a JSON text is when Python's `json.dumps` writes it as ComfyUI does: in ASCII, with a blank behind each comma and
/// colon, and floats in full. Never less than that, and hardly more.
///
/// One pass without memory of its own. An emoji of four bytes becomes twelve.
///
/// ```
/// use comfyui::lenient::ascii_length;
///
/// assert_eq!(ascii_length(r#"{"a":[1,"é"]}"#), r#"{"a": [1, "\u00e9"]}"#.len());
/// ```
pub fn ascii_length(json: &str) -> usize {
    let json = json.as_bytes();
    let (mut length, mut at) = (0, 0);
    while let Some(&byte) = json.get(at) {
        match byte {
            b'"' => {
                let end = end_of_string(json, at).min(json.len());
                length += json[at..end].iter().map(|&byte| ascii_length_of(byte)).sum::<usize>();
                at = end;
                continue;
            }
            b'-' | b'0'..=b'9' => {
                let rest = &json[at..];
                let part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let digits = rest.iter().take_while(part).count();
                let exponent = rest[..digits].iter().any(|byte| matches!(byte, b'e' | b'E'));
                length += if exponent { digits.max(LONGEST_FLOAT) } else { digits };
                at += digits;
                continue;
            }
            b',' | b':' => length += 2,
            byte if byte.is_ascii_whitespace() => {}
            _ => length += 1,
        }
        at += 1;
    }
    length
}

/// `-1.7976931348623157e+308`, as Python writes it. `1e15` becomes 18 digits.
const LONGEST_FLOAT: usize = 24;

/// What one byte within a string takes. The first byte of a character stands for all of them.
fn ascii_length_of(byte: u8) -> usize {
    match byte {
        0x7f => 6,
        0x00..=0x7e => 1,
        0x80..=0xbf => 0,
        0xc0..=0xef => 6,
        0xf0..=0xff => 12,
    }
}

/// The bare words outside strings and where they stand.
pub(crate) fn non_finite_words(json: &[u8]) -> impl Iterator<Item = (usize, &'static str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(&byte) = json.get(at) {
            match byte {
                b'"' => at = end_of_string(json, at),
                b'-' | b'I' | b'N' => {
                    match NON_FINITE.iter().find(|word| json[at..].starts_with(word.as_bytes())) {
                        Some(word) => {
                            let start = at;
                            at += word.len();
                            return Some((start, *word));
                        }
                        None => at += 1,
                    }
                }
                _ => at += 1,
            }
        }
        None
    })
}

/// The offset just behind the string that opens at `start`, or the end of the text when it never closes.
pub(crate) fn end_of_string(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

/// Reads a number that may have been a bare `NaN`: `null` becomes [`f64::NAN`].
///
/// For fields of wire types: `#[serde(deserialize_with = "comfyui::lenient::nan_if_null")]`.
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Accepted {
///     #[serde(deserialize_with = "comfyui::lenient::nan_if_null")]
///     number: f64,
/// }
///
/// let accepted: Accepted = comfyui::lenient::from_str(r#"{"number": NaN}"#)?;
/// assert!(accepted.number.is_nan());
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// # Errors
///
/// The error of the deserializer when the value is neither a number nor `null`.
pub fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_length_that_python_writes_is_known() {
        for (text, written) in [
            (r#"{"a":1,"b":[true,null]}"#, r#"{"a": 1, "b": [true, null]}"#),
            ("[ 1 ,\n 2.5 ]", "[1, 2.5]"),
            ("\"\u{1f600}\"", r#""\ud83d\ude00""#),
            ("\"\u{e9}\u{20ac}\u{7f}\"", r#""\u00e9\u20ac\u007f""#),
            (r#""a\"b\\ \u00e9, : ""#, r#""a\"b\\ \u00e9, : ""#),
        ] {
            assert_eq!(ascii_length(text), written.len(), "{text}");
        }
        assert!(ascii_length("1e15") >= "1000000000000000.0".len());
        assert_eq!(ascii_length("\"never closed"), 13);
        assert_eq!(ascii_length("\"never closed\\"), 14);
    }

    #[test]
    fn bare_words_become_null_and_strings_stay() {
        let text = r#"{"a": NaN, "b": [Infinity, -Infinity, -1], "NaN \" NaN": "-Infinity \\", "c": NaN}"#;
        let read: Value = from_str(text).expect("lenient");
        assert_eq!(read, json!({"a": null, "b": [null, null, -1], "NaN \" NaN": "-Infinity \\", "c": null}));
    }

    #[test]
    fn raw_parts_are_valid_json() {
        let read: Vec<Box<RawValue>> = from_str(r#"[{"deep": [NaN]}, 1]"#).expect("lenient");
        assert_eq!(read[0].get(), r#"{"deep": [null]}"#);
    }

    #[test]
    fn what_is_not_json_stays_an_error() {
        for text in ["", "nan", "[NaN", "NaNNaN", "-NaN", "{\"a\": Infinit}", "\"NaN", "[\\NaN]"] {
            assert!(from_str::<Value>(text).is_err(), "{text}");
        }
    }

    /// JSON values with texts that look like the bare words.
    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
            "(NaN|-?Infinity|\\\\|\"| ){0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("(NaN|\"|x){0,3}", inner), 0..4)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let lenient = from_slice::<Value>(&bytes);
            if let Ok(strict) = serde_json::from_slice::<Value>(&bytes) {
                prop_assert_eq!(lenient.expect("strict parse worked"), strict);
            }
        }

        #[test]
        fn near_json_ends_in_an_answer(text in r#"(NaN|-?Infinity|"|\\|[\[\]{},:1a ]){0,30}"#) {
            let lenient = from_str::<Value>(&text);
            if let Ok(strict) = serde_json::from_str::<Value>(&text) {
                prop_assert_eq!(lenient.expect("strict parse worked"), strict);
            }
        }

        #[test]
        fn valid_json_is_never_touched(value in json_value()) {
            let text = value.to_string();
            prop_assert!(matches!(replace_non_finite(text.as_bytes()), Cow::Borrowed(_)));
        }

        #[test]
        fn one_bare_word_costs_one_null(value in json_value(), word in "NaN|Infinity|-Infinity") {
            let read: Value = from_str(&format!("[{word}, {value}]")).expect("lenient");
            prop_assert_eq!(&read[0], &Value::Null);
            let reread: Value = serde_json::from_str(&value.to_string()).expect("just written");
            prop_assert_eq!(&read[1], &reread);
        }
    }
}
