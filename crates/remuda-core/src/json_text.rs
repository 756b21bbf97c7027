//! JSON that is kept and passed on.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// JSON as its text. As values it takes up to a hundred times that room, and most of those who hold it only pass it on.
/// Copies share it: an end that many wait for is in memory once.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JsonText(Arc<RawValue>);

impl JsonText {
    /// The text.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// Its values. What has none, such as a number beyond all bounds, is null.
    pub fn read(&self) -> Value {
        serde_json::from_str(self.get()).unwrap_or_default()
    }

    /// The names of its fields, in their order, each once. What is no object has none.
    pub fn names(&self) -> Vec<String> {
        serde_json::Deserializer::from_str(self.get()).deserialize_map(Names).unwrap_or_default()
    }

    /// Whether it is null, or an object without fields.
    pub fn is_empty(&self) -> bool {
        match self.get().trim_ascii() {
            "null" => true,
            text => text
                .strip_prefix('{')
                .is_some_and(|rest| rest.strip_suffix('}').is_some_and(|rest| rest.trim_ascii().is_empty())),
        }
    }
}

impl Default for JsonText {
    fn default() -> Self {
        RawValue::NULL.to_owned().into()
    }
}

impl From<Box<RawValue>> for JsonText {
    fn from(text: Box<RawValue>) -> Self {
        Self(text.into())
    }
}

impl From<Value> for JsonText {
    fn from(value: Value) -> Self {
        RawValue::from_string(value.to_string()).map(Self::from).unwrap_or_default()
    }
}

/// Equal values: another store may write them in another way.
impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get() || self.read() == other.read()
    }
}

impl PartialEq<Value> for JsonText {
    fn eq(&self, other: &Value) -> bool {
        self.read() == *other
    }
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Vec<String>, A::Error> {
        let mut seen = std::collections::HashSet::new();
        let mut names = Vec::new();
        while let Some((name, IgnoredAny)) = fields.next_entry::<String, _>()? {
            if seen.insert(name.clone()) {
                names.push(name);
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_stays_as_it_was_and_can_be_read() {
        let text = r#"{"b": 1, "a": [{"": 0}, 1e400], "b": 2}"#;
        let kept: JsonText = serde_json::from_str(text).unwrap();
        assert_eq!((kept.get(), serde_json::to_string(&kept).unwrap().as_str()), (text, text));
        assert_eq!((kept.names(), kept.read()), (vec!["b".to_owned(), "a".to_owned()], Value::Null));
        let value = json!({"9": {"images": []}});
        let kept = JsonText::from(value.clone());
        assert_eq!(
            (&kept, kept.read()),
            (&serde_json::from_str(r#"{ "9":{"images" : [ ]}}"#).unwrap(), value.clone())
        );
        assert_eq!(serde_json::from_value::<JsonText>(value.clone()).unwrap(), kept);
        assert_eq!(serde_json::to_value(&kept).unwrap(), value);
    }

    #[test]
    fn nothing_is_empty() {
        for (text, empty) in
            [("null", true), (" { \n} ", true), ("{\"a\":{}}", false), ("[]", false), ("0", false)]
        {
            assert_eq!(serde_json::from_str::<JsonText>(text).unwrap().is_empty(), empty, "{text}");
        }
    }
}
