//! JSON as ComfyUI writes it, read with `serde_json`: bare `NaN` and `Infinity` become marked texts.

use serde_json::Value;

/// Reads JSON in which `NaN`, `Infinity` and `-Infinity` may stand where a number may stand.
pub fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(&mark_non_finite(text)).map_err(|error| format!("not JSON: {error}"))
}

fn mark_non_finite(text: &str) -> String {
    let mut marked = String::with_capacity(text.len());
    let mut rest = text;
    let mut inside_text = false;
    while let Some(next) = rest.chars().next() {
        if inside_text {
            let length = if next == '\\' {
                1 + rest[1..].chars().next().map_or(0, char::len_utf8)
            } else {
                next.len_utf8()
            };
            inside_text = next != '"';
            marked.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        let word = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| rest.starts_with(word));
        if let Some(word) = word {
            marked.push_str("\"bare ");
            marked.push_str(word);
            marked.push('"');
            rest = &rest[word.len()..];
        } else {
            inside_text = next == '"';
            marked.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    marked
}

/// What Python's `json.dumps` would have written otherwise: `", "` and `": "` between the parts, ASCII only.
pub fn not_as_python_writes(text: &str) -> Option<String> {
    let mut inside_text = false;
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        if !character.is_ascii() {
            return Some(format!("unescaped {character:?} at byte {at}"));
        }
        if inside_text {
            match character {
                '\\' => {
                    characters.next();
                }
                '"' => inside_text = false,
                _ => {}
            }
            continue;
        }
        match character {
            '"' => inside_text = true,
            ',' | ':' if characters.next_if(|(_, next)| *next == ' ').is_none() => {
                return Some(format!("no space after {character:?} at byte {at}"));
            }
            ' ' | '\n' | '\t' | '\r' => return Some(format!("white space at byte {at}")),
            _ => {}
        }
    }
    None
}

#[test]
fn reads_bare_nan_only_outside_of_texts() {
    let value = parse(r#"{"a": NaN, "b": "NaN \" Infinity", "c": [-Infinity, Infinity, 1.0]}"#).unwrap();
    assert_eq!(
        value.to_string(),
        r#"{"a":"bare NaN","b":"NaN \" Infinity","c":["bare -Infinity","bare Infinity",1.0]}"#
    );
    assert!(not_as_python_writes(r#"{"a": NaN, "b": "x,y:z"}"#).is_none());
    assert!(not_as_python_writes(r#"{"a":1}"#).is_some());
}
