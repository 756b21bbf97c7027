//! Between values, the wire, and serde.

use prost_types::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Number, Value as Json};

use super::Value;
use crate::delivery::{wf_run_from_path, wf_run_path};
use crate::error::{Error, Result};
use crate::proto;
use crate::proto::variable_value::Value as Wire;
use crate::task_def::Type;

impl TryFrom<proto::VariableValue> for Value {
    type Error = Error;

    fn try_from(value: proto::VariableValue) -> Result<Self> {
        Ok(match value.value {
            None => Self::Null,
            Some(Wire::JsonObj(text)) => Self::JsonObj(text),
            Some(Wire::JsonArr(text)) => Self::JsonArr(text),
            Some(Wire::Double(number)) => Self::Double(number),
            Some(Wire::Bool(yes)) => Self::Bool(yes),
            Some(Wire::Str(text)) => Self::Str(text),
            Some(Wire::Int(number)) => Self::Int(number),
            Some(Wire::Bytes(bytes)) => Self::Bytes(bytes),
            Some(Wire::WfRunId(id)) => Self::WfRunId(id),
            Some(Wire::UtcTimestamp(moment)) => Self::Timestamp(from_wire_time(moment)?),
            Some(Wire::Struct(value)) => Self::Struct(value),
            Some(Wire::Array(value)) => Self::Array(value),
            Some(Wire::Map(value)) => Self::Map(value),
            Some(Wire::Unknown(number)) => {
                let reason = format!("its kind (number {number}) is not known to this version of the crate");
                return Err(Error::value("a value", reason));
            }
        })
    }
}

impl From<Value> for proto::VariableValue {
    fn from(value: Value) -> Self {
        let value = match value {
            Value::Null => None,
            Value::JsonObj(text) => Some(Wire::JsonObj(text)),
            Value::JsonArr(text) => Some(Wire::JsonArr(text)),
            Value::Double(number) => Some(Wire::Double(number)),
            Value::Bool(yes) => Some(Wire::Bool(yes)),
            Value::Str(text) => Some(Wire::Str(text)),
            Value::Int(number) => Some(Wire::Int(number)),
            Value::Bytes(bytes) => Some(Wire::Bytes(bytes)),
            Value::WfRunId(id) => Some(Wire::WfRunId(id)),
            Value::Timestamp(moment) => Some(Wire::UtcTimestamp(to_wire_time(moment))),
            Value::Struct(value) => Some(Wire::Struct(value)),
            Value::Array(value) => Some(Wire::Array(value)),
            Value::Map(value) => Some(Wire::Map(value)),
        };
        Self { value }
    }
}

pub(crate) fn to_wire_time(moment: jiff::Timestamp) -> Timestamp {
    let (mut seconds, mut nanos) = (moment.as_second(), moment.subsec_nanosecond());
    // On the wire the fraction always points forward.
    if nanos < 0 {
        seconds -= 1;
        nanos += 1_000_000_000;
    }
    Timestamp { seconds, nanos }
}

fn from_wire_time(moment: Timestamp) -> Result<jiff::Timestamp> {
    jiff::Timestamp::new(moment.seconds, moment.nanos)
        .map_err(|error| Error::value("a timestamp", error.to_string()))
}

pub(super) fn to<T: DeserializeOwned>(value: &Value) -> Result<T> {
    let done = match value {
        Value::JsonObj(text) | Value::JsonArr(text) => serde_json::from_str(text),
        other => serde_json::from_value(json(other)?),
    };
    done.map_err(|error| wrong(value.kind(), error))
}

fn wrong(kind: &str, reason: impl ToString) -> Error {
    Error::value(format!("a value of the type {kind}"), reason.to_string())
}

/// A value as JSON.
fn json(value: &Value) -> Result<Json> {
    Ok(match value {
        Value::Null => Json::Null,
        Value::JsonObj(text) | Value::JsonArr(text) => {
            serde_json::from_str(text).map_err(|error| wrong(value.kind(), error))?
        }
        Value::Double(number) => Number::from_f64(*number)
            .map(Json::Number)
            .ok_or_else(|| wrong(value.kind(), format!("{number} is not a number")))?,
        Value::Bool(yes) => Json::Bool(*yes),
        Value::Str(text) => Json::String(text.clone()),
        Value::Int(number) => Json::Number((*number).into()),
        Value::Bytes(bytes) => bytes.iter().map(|byte| Json::Number((*byte).into())).collect(),
        Value::WfRunId(id) => Json::String(wf_run_path(id)),
        Value::Timestamp(moment) => Json::String(moment.to_string()),
        Value::Struct(value) => {
            let mut fields: Vec<_> = value.r#struct.iter().flat_map(|inline| &inline.fields).collect();
            fields.sort_by_key(|(name, _)| *name);
            let fields =
                fields.into_iter().map(|(name, field)| Ok((name.clone(), wire_json(field.value.as_ref())?)));
            Json::Object(fields.collect::<Result<_>>()?)
        }
        Value::Array(array) => {
            Json::Array(array.items.iter().map(|item| wire_json(Some(item))).collect::<Result<_>>()?)
        }
        Value::Map(map) => {
            let entries = map.entries.iter().map(|entry| {
                let key = match wire_json(entry.key.as_ref())? {
                    Json::String(text) => text,
                    key @ (Json::Number(_) | Json::Bool(_)) => key.to_string(),
                    _ => return Err(wrong(value.kind(), "a key is neither text nor number")),
                };
                Ok((key, wire_json(entry.value.as_ref())?))
            });
            Json::Object(entries.collect::<Result<_>>()?)
        }
    })
}

fn wire_json(value: Option<&proto::VariableValue>) -> Result<Json> {
    json(&value.cloned().unwrap_or_default().try_into()?)
}

pub(super) fn from_serialize<T: Serialize + ?Sized>(value: &T, of: Type) -> Result<Value> {
    let raw = raw(value)?;
    let no = |found: &str| wrong(of.name(), format!("{found} cannot be sent as this type"));
    if raw.get() == "null" {
        return Ok(Value::Null);
    }
    let first = raw.get().as_bytes().first().copied().unwrap_or_default();
    match (of, first) {
        (Type::JsonObj, b'{') => return Ok(Value::JsonObj(text(raw))),
        (Type::JsonArr, b'[') => return Ok(Value::JsonArr(text(raw))),
        _ => {}
    }
    let parsed: Json = serde_json::from_str(raw.get()).map_err(|error| wrong(of.name(), error))?;
    let made = match (of, &parsed) {
        (Type::Double, Json::Number(number)) => number.as_f64().map(Value::Double),
        (Type::Bool, Json::Bool(yes)) => Some(Value::Bool(*yes)),
        (Type::Str, Json::String(text)) => Some(Value::Str(text.clone())),
        (Type::Int, Json::Number(number)) => number.as_i64().map(Value::Int),
        (Type::Bytes, Json::Array(items)) => {
            let byte = |item: &Json| item.as_u64().and_then(|number| u8::try_from(number).ok());
            items.iter().map(byte).collect::<Option<Vec<u8>>>().map(Value::Bytes)
        }
        (Type::WfRunId, Json::String(text)) => Some(Value::WfRunId(wf_run_from_path(text))),
        (Type::Timestamp, Json::String(text)) => text.parse().ok().map(Value::Timestamp),
        _ => None,
    };
    made.ok_or_else(|| no(found(&parsed)))
}

pub(super) fn infer<T: Serialize + ?Sized>(value: &T) -> Result<Value> {
    let raw = raw(value)?;
    match raw.get().as_bytes().first() {
        Some(b'{') => return Ok(Value::JsonObj(text(raw))),
        Some(b'[') => return Ok(Value::JsonArr(text(raw))),
        _ => {}
    }
    Ok(match serde_json::from_str(raw.get()).map_err(|error| wrong("JSON", error))? {
        Json::Bool(yes) => Value::Bool(yes),
        Json::String(text) => Value::Str(text),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Value::Int(whole),
            (None, Some(broken)) => Value::Double(broken),
            (None, None) => return Err(wrong("JSON", "a number that is neither INT nor DOUBLE")),
        },
        _ => Value::Null,
    })
}

/// As JSON text. Text that is JSON already stays as it is.
fn raw<T: Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>> {
    to_raw_value(value).map_err(|error| Error::value("a value", error.to_string()))
}

fn text(raw: Box<RawValue>) -> String {
    let text: Box<str> = raw.into();
    text.into()
}

fn found(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "this number",
        Json::String(_) => "this text",
        Json::Array(_) => "this array",
        Json::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::HashMap;

    fn wire(value: Wire) -> proto::VariableValue {
        proto::VariableValue { value: Some(value) }
    }

    fn int(number: i64) -> proto::VariableValue {
        wire(Wire::Int(number))
    }

    fn nested() -> proto::WfRunId {
        let parent = proto::WfRunId { id: "p".into(), parent_wf_run_id: None };
        proto::WfRunId { id: "c".into(), parent_wf_run_id: Some(Box::new(parent)) }
    }

    fn moment() -> jiff::Timestamp {
        "1969-12-31T23:59:58.25Z".parse().unwrap()
    }

    fn all() -> Vec<Value> {
        let field = proto::StructField { value: Some(int(3)), masked: false };
        let text = proto::StructField { value: Some(wire(Wire::JsonArr("[1]".into()))), masked: true };
        let fields = HashMap::from([("n".to_owned(), field), ("list".to_owned(), text)]);
        let entry = proto::map::Entry { key: Some(int(7)), value: Some(wire(Wire::Str("x".into()))) };
        vec![
            Value::Null,
            Value::JsonObj("{\"a\": 1}".into()),
            Value::JsonArr("[ ]".into()),
            Value::Double(0.5),
            Value::Bool(false),
            Value::Str(String::new()),
            Value::Int(i64::MIN),
            Value::Bytes(vec![0, 255]),
            Value::WfRunId(nested()),
            Value::Timestamp(moment()),
            Value::Struct(proto::Struct {
                struct_def_id: Some(proto::StructDefId { name: "s".into(), version: 1 }),
                r#struct: Some(proto::InlineStruct { fields }),
            }),
            Value::Array(proto::Array { items: vec![int(1), int(2)], element_type: None }),
            Value::Map(proto::Map { entries: vec![entry], map_type: None }),
        ]
    }

    #[test]
    fn every_kind_survives_the_wire() {
        use prost::Message;
        for value in all() {
            let bytes = proto::VariableValue::from(value.clone()).encode_to_vec();
            let back = proto::VariableValue::decode(bytes.as_slice()).unwrap();
            assert_eq!(Value::try_from(back).unwrap(), value);
        }
    }

    #[test]
    fn every_kind_becomes_json() {
        let json: Vec<String> = all().iter().map(|value| value.to::<Json>().unwrap().to_string()).collect();
        let expected = [
            "null",
            r#"{"a":1}"#,
            "[]",
            "0.5",
            "false",
            r#""""#,
            "-9223372036854775808",
            "[0,255]",
            r#""p_c""#,
            r#""1969-12-31T23:59:58.25Z""#,
            r#"{"list":[1],"n":3}"#,
            "[1,2]",
            r#"{"7":"x"}"#,
        ];
        assert_eq!(json, expected);
    }

    #[test]
    fn values_become_rust_types_and_back() {
        #[derive(Deserialize, serde::Serialize, PartialEq, Debug)]
        struct Order {
            id: u64,
            gift: Option<bool>,
        }
        let order: Order = Value::JsonObj(r#"{"id": 1, "more": 2}"#.into()).to().unwrap();
        assert_eq!(order, Order { id: 1, gift: None });
        assert_eq!(
            from_serialize(&order, Type::JsonObj).unwrap(),
            Value::JsonObj(r#"{"id":1,"gift":null}"#.into())
        );
        assert_eq!(Value::Int(5).to::<Option<u8>>().unwrap(), Some(5));
        assert_eq!(Value::Double(8.0).to::<f32>().unwrap(), 8.0);
        assert_eq!(Value::Bytes(vec![1, 2]).to::<Vec<u8>>().unwrap(), [1, 2]);
        assert_eq!(Value::Timestamp(moment()).to::<jiff::Timestamp>().unwrap(), moment());
        for (value, of) in [
            (Value::Int(5), Type::Int),
            (Value::Bool(true), Type::Bool),
            (Value::Str("x".into()), Type::Str),
            (Value::Double(1.5), Type::Double),
            (Value::Bytes(vec![0, 255]), Type::Bytes),
            (Value::WfRunId(nested()), Type::WfRunId),
            (Value::Timestamp(moment()), Type::Timestamp),
            (Value::JsonArr("[1,2]".into()), Type::JsonArr),
        ] {
            let json: Json = value.to().unwrap();
            assert_eq!(from_serialize(&json, of).unwrap(), value);
            assert_eq!(from_serialize(&None::<u8>, of).unwrap(), Value::Null);
        }
    }

    /// Big numbers and odd spaces: whoever takes raw JSON gets what came, and gives what is sent.
    #[test]
    fn raw_json_passes_untouched() {
        let text = r#"{ "seed" : 18446744073709551616.50, "a":1e-05 }"#;
        let raw: Box<RawValue> = Value::JsonObj(text.into()).to().unwrap();
        assert_eq!(raw.get(), text);
        assert_eq!(from_serialize(&raw, Type::JsonObj).unwrap(), Value::JsonObj(text.into()));
        assert_eq!(infer(&raw).unwrap(), Value::JsonObj(text.into()));
    }

    #[test]
    fn the_suiting_type_is_found() {
        assert_eq!(infer(&7).unwrap(), Value::Int(7));
        assert_eq!(infer(&u64::MAX).unwrap(), Value::Double(u64::MAX as f64));
        assert_eq!(infer("a").unwrap(), Value::Str("a".into()));
        assert_eq!(infer(&[1.5]).unwrap(), Value::JsonArr("[1.5]".into()));
        assert_eq!(infer(&()).unwrap(), Value::Null);
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let told = |error: Error| error.to_string();
        assert_eq!(
            told(from_serialize(&[1], Type::JsonObj).unwrap_err()),
            "a value of the type JSON_OBJ: this array cannot be sent as this type"
        );
        assert!(from_serialize(&u64::MAX, Type::Int).is_err());
        assert!(from_serialize(&[256], Type::Bytes).is_err());
        assert!(from_serialize("yesterday", Type::Timestamp).is_err());
        let bad = told(Value::JsonObj("{".into()).to::<Json>().unwrap_err());
        assert!(bad.starts_with("a value of the type JSON_OBJ: EOF"), "{bad}");
        assert!(Value::Null.to::<i64>().is_err());
        assert!(Value::Double(f64::NAN).to::<f64>().is_err());
        let unknown = told(Value::try_from(wire(Wire::Unknown(14))).unwrap_err());
        assert_eq!(unknown, "a value: its kind (number 14) is not known to this version of the crate");
        let beyond = wire(Wire::UtcTimestamp(Timestamp { seconds: i64::MAX, nanos: 0 }));
        assert!(Value::try_from(beyond).is_err());
    }
}
