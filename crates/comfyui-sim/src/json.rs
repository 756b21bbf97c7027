//! JSON as Python's `json` module reads and writes it.
//!
//! ComfyUI's answers carry Python's habits: integers of any size, floats that stay floats (`1.0`,
//! `1e-05`), bare `NaN` and `Infinity`, `", "` and `": "` as separators, everything outside ASCII
//! escaped, key order kept, the last of doubled keys winning. Error texts embed Python's `repr`.
//! `serde_json::Value` keeps none of these, hence a small type of our own.
//!
//! ```
//! use comfyui_sim::json::Json;
//!
//! let value = Json::parse(r#"{"seed": 18446744073709551615, "cfg": 1e-5, "eta": NaN}"#.as_bytes())?;
//! assert_eq!(value.dump(), r#"{"seed": 18446744073709551615, "cfg": 1e-05, "eta": NaN}"#);
//! assert_eq!(value.repr(), "{'seed': 18446744073709551615, 'cfg': 1e-05, 'eta': nan}");
//! # Ok::<(), comfyui_sim::json::ParseError>(())
//! ```

mod parse;
mod write;

use indexmap::IndexMap;
use std::cmp::Ordering;

pub use parse::{MAX_DEPTH, ParseError};
pub use write::{repr_float, repr_str};

/// An object in insertion order.
pub type Dict = IndexMap<String, Json>;

/// One JSON value with Python's distinctions.
///
/// `==` compares exactly (`1` is not `1.0`); [`Json::python_eq`] compares as Python does.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `null` / `None`.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// An integer that fits (all that ComfyUI's nodes take: up to 2^64-1).
    Int(i128),
    /// An integer beyond that, as its decimal digits.
    BigInt(String),
    /// A float, possibly NaN or infinite.
    Float(f64),
    /// Text.
    Str(String),
    /// A list.
    List(Vec<Json>),
    /// A dict.
    Dict(Dict),
}

/// Builds an object from pairs, in the order given.
///
/// ```
/// use comfyui_sim::json::dict;
///
/// assert_eq!(dict([("value", 1.into()), ("max", 2.5.into())]).dump(), r#"{"value": 1, "max": 2.5}"#);
/// ```
pub fn dict<K: Into<String>, const N: usize>(pairs: [(K, Json); N]) -> Json {
    Json::Dict(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

/// Builds a list from anything that becomes values.
pub fn list<T: Into<Json>>(values: impl IntoIterator<Item = T>) -> Json {
    Json::List(values.into_iter().map(Into::into).collect())
}

impl Json {
    /// The empty object.
    pub fn empty_dict() -> Json {
        Json::Dict(Dict::new())
    }

    /// The member of an object; `None` for absent members and for values that are not objects.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.as_dict()?.get(key)
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The list, if it is one.
    pub fn as_list(&self) -> Option<&[Json]> {
        match self {
            Json::List(values) => Some(values),
            _ => None,
        }
    }

    /// The object, if it is one.
    pub fn as_dict(&self) -> Option<&Dict> {
        match self {
            Json::Dict(members) => Some(members),
            _ => None,
        }
    }

    /// The object to change, if it is one.
    pub fn as_dict_mut(&mut self) -> Option<&mut Dict> {
        match self {
            Json::Dict(members) => Some(members),
            _ => None,
        }
    }

    /// The integer, if it is one and not a bool.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Json::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Any number (bools count, as in Python) as a float.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Json::Bool(value) => Some(f64::from(u8::from(*value))),
            Json::Int(value) => Some(*value as f64),
            Json::BigInt(digits) => digits.parse().ok(),
            Json::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// The bool, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Json::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Json::Null)
    }

    /// What Python's `if value:` decides.
    pub fn is_truthy(&self) -> bool {
        match self {
            Json::Null => false,
            Json::Bool(value) => *value,
            Json::Int(value) => *value != 0,
            Json::BigInt(_) => true,
            Json::Float(value) => *value != 0.0,
            Json::Str(text) => !text.is_empty(),
            Json::List(values) => !values.is_empty(),
            Json::Dict(members) => !members.is_empty(),
        }
    }

    /// Python's name of the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Json::Null => "NoneType",
            Json::Bool(_) => "bool",
            Json::Int(_) | Json::BigInt(_) => "int",
            Json::Float(_) => "float",
            Json::Str(_) => "str",
            Json::List(_) => "list",
            Json::Dict(_) => "dict",
        }
    }

    /// Equality as Python sees it: `1 == 1.0 == True`, objects without regard to order.
    pub fn python_eq(&self, other: &Json) -> bool {
        match (self, other) {
            (Json::List(left), Json::List(right)) => {
                left.len() == right.len() && left.iter().zip(right).all(|(l, r)| l.python_eq(r))
            }
            (Json::Dict(left), Json::Dict(right)) => {
                left.len() == right.len()
                    && left.iter().all(|(key, l)| right.get(key).is_some_and(|r| l.python_eq(r)))
            }
            _ => match (self.is_number(), other.is_number()) {
                (true, true) => self.compare_numbers(other) == Some(Ordering::Equal),
                _ => self == other,
            },
        }
    }

    /// Order of two numbers as Python compares them (exact, also int with float); `None` if one is
    /// NaN or no number.
    pub fn compare_numbers(&self, other: &Json) -> Option<Ordering> {
        match (self.as_exact_int(), other.as_exact_int()) {
            (Some(left), Some(right)) => Some(left.cmp(&right)),
            _ => match (self, other) {
                (Json::BigInt(left), Json::BigInt(right)) => Some(compare_digits(left, right)),
                (Json::BigInt(digits), right) if right.as_exact_int().is_some() => Some(sign_of(digits)),
                (left, Json::BigInt(digits)) if left.as_exact_int().is_some() => {
                    Some(sign_of(digits).reverse())
                }
                _ => self.as_f64()?.partial_cmp(&other.as_f64()?),
            },
        }
    }

    /// Whether Python can do arithmetic with it.
    pub fn is_number(&self) -> bool {
        matches!(self, Json::Bool(_) | Json::Int(_) | Json::BigInt(_) | Json::Float(_))
    }

    fn as_exact_int(&self) -> Option<i128> {
        match self {
            Json::Bool(value) => Some(i128::from(*value)),
            Json::Int(value) => Some(*value),
            _ => None,
        }
    }
}

fn sign_of(digits: &str) -> Ordering {
    if digits.starts_with('-') { Ordering::Less } else { Ordering::Greater }
}

fn compare_digits(left: &str, right: &str) -> Ordering {
    let by_size = |l: &str, r: &str| l.len().cmp(&r.len()).then_with(|| l.cmp(r));
    match (left.strip_prefix('-'), right.strip_prefix('-')) {
        (None, None) => by_size(left, right),
        (Some(l), Some(r)) => by_size(r, l),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Json::Bool(value)
    }
}

macro_rules! from_integers {
    ($($kind:ty),*) => {$(
        impl From<$kind> for Json {
            fn from(value: $kind) -> Self {
                Json::Int(value as i128)
            }
        }
    )*};
}
from_integers!(i8, u8, i16, u16, i32, u32, i64, u64, i128, usize, isize);

impl From<f64> for Json {
    fn from(value: f64) -> Self {
        Json::Float(value)
    }
}

impl From<&str> for Json {
    fn from(value: &str) -> Self {
        Json::Str(value.to_owned())
    }
}

impl From<String> for Json {
    fn from(value: String) -> Self {
        Json::Str(value)
    }
}

impl From<&String> for Json {
    fn from(value: &String) -> Self {
        Json::Str(value.clone())
    }
}

impl From<Dict> for Json {
    fn from(value: Dict) -> Self {
        Json::Dict(value)
    }
}

impl<T: Into<Json>> From<Vec<T>> for Json {
    fn from(values: Vec<T>) -> Self {
        list(values)
    }
}

impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Self {
        value.map_or(Json::Null, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::Bool),
            any::<i128>().prop_map(|value| Json::Int(value / 1000)),
            "-?[1-9][0-9]{39,60}".prop_map(Json::BigInt),
            any::<f64>().prop_filter("NaN is not equal to itself", |v| !v.is_nan()).prop_map(Json::Float),
            any::<String>().prop_map(Json::Str),
        ];
        leaf.prop_recursive(4, 40, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Json::List),
                prop::collection::vec((any::<String>(), inner), 0..8)
                    .prop_map(|pairs| Json::Dict(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_the_same(value in any_json()) {
            let text = value.dump();
            prop_assert!(text.is_ascii());
            prop_assert_eq!(Json::parse(text.as_bytes()).unwrap(), value);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Json::parse(&bytes);
        }

        #[test]
        fn no_json_like_text_makes_the_parser_panic(text in r#"[\[\]{}":,0-9eE+\-.\\uadNIn \t]{0,60}"#) {
            if let Ok(value) = Json::parse(text.as_bytes()) {
                let _ = (value.dump(), value.repr());
            }
        }
    }

    #[test]
    fn numbers_compare_as_in_python() {
        let parse = |text: &str| Json::parse(text.as_bytes()).unwrap();
        for (left, right) in
            [("1", "1.0"), ("true", "1"), ("0", "-0.0"), ("[1, {\"a\": 2}]", "[1.0, {\"a\": 2}]")]
        {
            assert!(parse(left).python_eq(&parse(right)), "{left} == {right}");
        }
        for (left, right) in [("1", "\"1\""), ("null", "0"), ("NaN", "NaN"), ("[1]", "[1, 2]")] {
            assert!(!parse(left).python_eq(&parse(right)), "{left} != {right}");
        }
        let big = parse("123456789012345678901234567890123456789012345");
        assert_eq!(parse("5").compare_numbers(&big), Some(Ordering::Less));
        assert_eq!(big.compare_numbers(&parse("1e50")), Some(Ordering::Less));
    }
}
