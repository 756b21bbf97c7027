//! Names that the server chooses: prompt ids, names of temporary files, etags. What was recorded is
//! translated to what this server chose before it is compared or sent.

use serde_json::Value;

/// What was recorded and what this server said instead.
#[derive(Debug, Default)]
pub struct Names {
    known: Vec<(String, String)>,
}

impl Names {
    /// Remembers that this server says `actual` where the recording says `recorded`.
    pub fn learn(&mut self, recorded: &str, actual: &str) {
        if recorded != actual
            && !recorded.is_empty()
            && !self.known.iter().any(|(known, _)| known == recorded)
        {
            self.known.push((recorded.to_owned(), actual.to_owned()));
        }
    }

    /// A recorded text as this server would say it.
    pub fn translate(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (recorded, actual) in &self.known {
            if text.contains(recorded.as_str()) {
                text = text.replace(recorded.as_str(), actual);
            }
        }
        text
    }

    /// A recorded document as this server would say it, keys included.
    pub fn translate_json(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.translate(text)),
            Value::Array(list) => Value::Array(list.iter().map(|value| self.translate_json(value)).collect()),
            Value::Object(map) => Value::Object(
                map.iter().map(|(key, value)| (self.translate(key), self.translate_json(value))).collect(),
            ),
            other => other.clone(),
        }
    }

    /// Whether both are names of temporary files that differ only in the five random letters; if so they are learned.
    pub fn learn_temporary(&mut self, recorded: &str, actual: &str) -> bool {
        const PREFIX: &str = "ComfyUI_temp_";
        let random = |text: &str| -> Option<(String, String)> {
            let rest = text.strip_prefix(PREFIX)?;
            let (letters, rest) = rest.split_at_checked(5)?;
            letters
                .bytes()
                .all(|letter| letter.is_ascii_lowercase())
                .then(|| (letters.to_owned(), rest.to_owned()))
        };
        let (Some((recorded_letters, recorded_rest)), Some((actual_letters, actual_rest))) =
            (random(recorded), random(actual))
        else {
            return false;
        };
        if recorded_rest != actual_rest {
            return false;
        }
        self.learn(&format!("{PREFIX}{recorded_letters}"), &format!("{PREFIX}{actual_letters}"));
        true
    }
}
