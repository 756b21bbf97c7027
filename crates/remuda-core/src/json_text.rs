//! JSON that is kept and passed on.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

/// JSON as its text. As values it takes up to a hundred times that room, and most of those who hold it only pass it on.
/// Copies share it: an end that many wait for is in memory once.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JsonText(Arc<RawValue>);

impl JsonText {
    /// The text of a value. What cannot be JSON is null.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Self {
        to_raw_value(value).map(Self::from).unwrap_or_default()
    }

    /// An object without fields.
    pub fn object() -> Self {
        Self::of(&Map::new())
    }

    /// Leaves out of a longer text what does not fit into this many bytes, and says so: of an object the fields that come last
    /// and those that are too long; of anything else, all. What is said then has the field `cut`, with the `bytes` that it had, and
    /// of the fields that were left out their number and some of their names.
    ///
    /// ```
    /// use remuda_core::JsonText;
    /// let mut text = JsonText::from(serde_json::json!({"inputs": "x".repeat(500), "traceback": ["line"]}));
    /// text.cut(100);
    /// assert_eq!(text, serde_json::json!({"traceback": ["line"], "cut": {"bytes": 534, "count": 1, "fields": ["inputs"]}}));
    /// ```
    pub fn cut(&mut self, most: usize) {
        let bytes = self.get().len();
        if bytes <= most {
            return;
        }
        let mut deserializer = serde_json::Deserializer::from_str(self.get());
        let Kept { mut text, count, fields } =
            deserializer.deserialize_map(Keep(most)).unwrap_or_else(|_| Kept::default());
        let cut = Map::from_iter([
            ("bytes".to_owned(), bytes.into()),
            ("count".to_owned(), count.into()),
            ("fields".to_owned(), fields.into()),
        ]);
        text.push_str(if text.is_empty() { "{\"cut\":" } else { ",\"cut\":" });
        text.push_str(&Value::Object(cut).to_string());
        text.push('}');
        *self = RawValue::from_string(text).map(Self::from).unwrap_or_default();
    }

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

/// What fits.
#[derive(Default)]
struct Kept {
    /// An object without its end; nothing if it has no fields.
    text: String,
    count: usize,
    fields: Vec<String>,
}

/// Keeps what fits into this many bytes.
struct Keep(usize);

impl<'de> Visitor<'de> for Keep {
    type Value = Kept;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Kept, A::Error> {
        /// How many names are said of what is left out, and how long those are.
        const SAID: (usize, usize) = (16, 100);
        let mut kept = Kept::default();
        while let Some((name, value)) = fields.next_entry::<String, &RawValue>()? {
            // A name may be twice as long as it is written, and there is more to a field than name and value.
            let length = 2 * name.len() + value.get().len() + 8;
            if name != "cut" && kept.text.len() + length <= self.0 {
                kept.text.push(if kept.text.is_empty() { '{' } else { ',' });
                kept.text.push_str(&Value::from(name).to_string());
                kept.text.push(':');
                kept.text.push_str(value.get());
                continue;
            }
            kept.count += 1;
            if kept.fields.len() < SAID.0 {
                kept.fields.push(name.chars().take(SAID.1).collect());
            }
        }
        Ok(kept)
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
    fn what_is_too_long_is_left_out_with_a_mark() {
        let cut = |text: &str, most: usize| {
            let mut text: JsonText = serde_json::from_str(text).unwrap();
            text.cut(most);
            text.get().to_owned()
        };
        let short = r#"{"a": 1,  "b": [ ]}"#;
        assert_eq!(cut(short, short.len()), short, "as it was written");
        assert_eq!(cut(short, 15), r#"{"a":1,"cut":{"bytes":19,"count":1,"fields":["b"]}}"#);
        assert_eq!(cut("[1,2,3,4,5]", 4), r#"{"cut":{"bytes":11,"count":0,"fields":[]}}"#);
        let own = format!(r#"{{"cut": 1, "x": "{}", "a": 1}}"#, "x".repeat(100));
        assert_eq!(cut(&own, 50), r#"{"a":1,"cut":{"bytes":127,"count":2,"fields":["cut","x"]}}"#);
        let many = format!("{{{}\"z\":0}}", r#""\u0000":{"":0},"#.repeat(100_000));
        let left = cut(&many, 1000);
        assert!(left.len() < 3000 && serde_json::from_str::<Value>(&left).is_ok(), "{left}");
    }

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
