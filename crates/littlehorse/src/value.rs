//! Values, and their way from and to Rust's types.

mod convert;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Result;
use crate::proto;
use crate::task_def::Type;

/// A value of a variable, an input or an output.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Nothing.
    Null,
    /// A JSON object, as its own text.
    JsonObj(String),
    /// A JSON array, as its own text.
    JsonArr(String),
    /// A float.
    Double(f64),
    /// Yes or no.
    Bool(bool),
    /// Text.
    Str(String),
    /// An integer.
    Int(i64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// The id of a workflow run.
    WfRunId(proto::WfRunId),
    /// A moment.
    Timestamp(jiff::Timestamp),
    /// A value of a registered structure.
    Struct(proto::Struct),
    /// A list.
    Array(proto::Array),
    /// A map.
    Map(proto::Map),
}

impl Value {
    /// As a Rust type.
    ///
    /// The text of JSON goes straight to the type: `Box<serde_json::value::RawValue>` gets it as it came, character by
    /// character. Timestamps and ids of workflow runs come as text, bytes as a sequence.
    ///
    /// ```
    /// use littlehorse::Value;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Order { id: u64, gift: Option<bool> }
    ///
    /// let order: Order = Value::JsonObj(r#"{"id": 7}"#.into()).to()?;
    /// assert_eq!((order.id, order.gift), (7, None));
    /// assert_eq!(Value::Null.to::<Option<String>>()?, None);
    /// # Ok::<(), littlehorse::Error>(())
    /// ```
    pub fn to<T: DeserializeOwned>(&self) -> Result<T> {
        convert::to(self)
    }

    /// From a Rust type, as a value of this type. What serialises to null becomes [`Value::Null`].
    ///
    /// ```
    /// use littlehorse::{Type, Value};
    ///
    /// let value = Value::from_serialize(&serde_json::json!({"ok": true}), Type::JsonObj)?;
    /// assert_eq!(value, Value::JsonObj(r#"{"ok":true}"#.into()));
    /// assert!(Value::from_serialize(&"text", Type::Int).is_err());
    /// # Ok::<(), littlehorse::Error>(())
    /// ```
    pub fn from_serialize<T: Serialize + ?Sized>(value: &T, of: Type) -> Result<Self> {
        convert::from_serialize(value, of)
    }

    /// From a Rust type, as the type that suits it: objects, arrays, text, numbers, booleans.
    pub fn infer<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        convert::infer(value)
    }

    /// Its kind, in LittleHorse's words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::JsonObj(_) => Type::JsonObj.name(),
            Self::JsonArr(_) => Type::JsonArr.name(),
            Self::Double(_) => Type::Double.name(),
            Self::Bool(_) => Type::Bool.name(),
            Self::Str(_) => Type::Str.name(),
            Self::Int(_) => Type::Int.name(),
            Self::Bytes(_) => Type::Bytes.name(),
            Self::WfRunId(_) => Type::WfRunId.name(),
            Self::Timestamp(_) => Type::Timestamp.name(),
            Self::Struct(_) => "STRUCT",
            Self::Array(_) => "ARRAY",
            Self::Map(_) => "MAP",
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Str(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Double(number)
    }
}

impl From<bool> for Value {
    fn from(yes: bool) -> Self {
        Self::Bool(yes)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<jiff::Timestamp> for Value {
    fn from(moment: jiff::Timestamp) -> Self {
        Self::Timestamp(moment)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}
