//! Whether a task function fits a TaskDef, found out before the first task comes.
//!
//! A type that serde can read says what it wants to be read from when it is asked to read: it is asked once, with nothing to
//! read, and its first wish is written down.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Visitor};

use crate::error::{Error, Result};
use crate::proto;
use crate::task_def::{self, Type};

/// The types that an input can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Whatever comes.
    Anything,
    /// One of these.
    OneOf(&'static [Type]),
}

const BOOL: Expected = Expected::OneOf(&[Type::Bool]);
const INTEGER: Expected = Expected::OneOf(&[Type::Int]);
const FLOAT: Expected = Expected::OneOf(&[Type::Double, Type::Int]);
const TEXT: Expected = Expected::OneOf(&[Type::Str, Type::WfRunId, Type::Timestamp]);
const LIST: Expected = Expected::OneOf(&[Type::JsonArr, Type::Bytes]);
const OBJECT: Expected = Expected::OneOf(&[Type::JsonObj]);
const FIELDS: Expected = Expected::OneOf(&[Type::JsonObj, Type::JsonArr]);

/// Checks that a function with these inputs can serve this TaskDef.
pub(super) fn check(def: &proto::TaskDef, inputs: &[Expected]) -> Result<()> {
    let name = def.id.as_ref().map_or("", |id| id.name.as_str());
    let wrong = |reason: String| Error::Value {
        what: format!("the function for the TaskDef {name} {}", task_def::shape(def)),
        reason,
    };
    if def.input_vars.len() != inputs.len() {
        return Err(wrong(format!(
            "it takes {} inputs, and the TaskDef has {}",
            inputs.len(),
            def.input_vars.len()
        )));
    }
    for (n, (input, expected)) in def.input_vars.iter().zip(inputs).enumerate() {
        if let (Some(of), Expected::OneOf(types)) = (task_def::input_type(input), expected)
            && !types.contains(&of)
        {
            let types: Vec<&str> = types.iter().map(|of| of.name()).collect();
            return Err(wrong(format!(
                "it takes {} as input {n}, and `{}` is {}",
                types.join(" or "),
                input.name,
                of.name()
            )));
        }
    }
    Ok(())
}

/// The type that a TaskDef returns, if it is one of the plain ones.
pub(super) fn returns(def: &proto::TaskDef) -> Option<Type> {
    let of = def.return_type.as_ref()?.return_type.clone()?;
    task_def::input_type(&proto::VariableDef { type_def: Some(of), ..Default::default() })
}

/// What a type wants to be read from.
pub(super) fn probe<T: DeserializeOwned>() -> Expected {
    let mut wish = None;
    // Fails always: there is nothing to read.
    let _ = T::deserialize(Probe { wish: &mut wish });
    wish.unwrap_or(Expected::Anything)
}

struct Probe<'a> {
    wish: &'a mut Option<Expected>,
}

/// The answer to every wish.
#[derive(Debug)]
struct Nothing;

impl fmt::Display for Nothing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is nothing to read")
    }
}

impl std::error::Error for Nothing {}

impl serde::de::Error for Nothing {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

macro_rules! wishes {
    ($($method:ident => $wish:expr),* $(,)?) => {
        $(
            fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Nothing> {
                *self.wish = Some($wish);
                Err(Nothing)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Nothing;

    wishes! {
        deserialize_any => Expected::Anything,
        deserialize_ignored_any => Expected::Anything,
        deserialize_identifier => Expected::Anything,
        deserialize_unit => Expected::Anything,
        deserialize_bool => BOOL,
        deserialize_i8 => INTEGER,
        deserialize_i16 => INTEGER,
        deserialize_i32 => INTEGER,
        deserialize_i64 => INTEGER,
        deserialize_i128 => INTEGER,
        deserialize_u8 => INTEGER,
        deserialize_u16 => INTEGER,
        deserialize_u32 => INTEGER,
        deserialize_u64 => INTEGER,
        deserialize_u128 => INTEGER,
        deserialize_f32 => FLOAT,
        deserialize_f64 => FLOAT,
        deserialize_char => TEXT,
        deserialize_str => TEXT,
        deserialize_string => TEXT,
        deserialize_bytes => Expected::Anything,
        deserialize_byte_buf => Expected::Anything,
        deserialize_seq => LIST,
        deserialize_map => OBJECT,
    }

    // An optional input is what it is optionally: it is looked at as if it were there.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Nothing> {
        visitor.visit_some(self)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Nothing> {
        self.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Nothing> {
        // Raw JSON calls itself so, and takes everything.
        if name.starts_with('$') { self.deserialize_any(visitor) } else { visitor.visit_newtype_struct(self) }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Nothing> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Nothing> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Nothing> {
        *self.wish = Some(FIELDS);
        Err(Nothing)
    }

    // Text for one kind, an object for another.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Nothing> {
        self.deserialize_any(visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::Deserialize;

    use super::*;
    use crate::task_def::NewTaskDef;

    #[derive(Deserialize)]
    struct Order {
        #[expect(dead_code, reason = "only its shape matters")]
        id: u64,
    }

    #[derive(Deserialize)]
    struct Cents(#[expect(dead_code, reason = "only its shape matters")] i64);

    #[test]
    fn types_say_what_they_want() {
        assert_eq!(probe::<String>(), TEXT);
        assert_eq!(probe::<Option<u32>>(), INTEGER);
        assert_eq!(probe::<Cents>(), INTEGER);
        assert_eq!(probe::<f64>(), FLOAT);
        assert_eq!(probe::<bool>(), BOOL);
        assert_eq!(probe::<Vec<String>>(), LIST);
        assert_eq!(probe::<HashMap<String, i32>>(), OBJECT);
        assert_eq!(probe::<Order>(), FIELDS);
        assert_eq!(probe::<serde_json::Value>(), Expected::Anything);
        assert_eq!(probe::<Box<serde_json::value::RawValue>>(), Expected::Anything);
    }

    fn def(new: NewTaskDef) -> proto::TaskDef {
        proto::TaskDef {
            id: Some(proto::TaskDefId { name: new.request.name }),
            input_vars: new.request.input_vars,
            return_type: new.request.return_type,
            ..Default::default()
        }
    }

    #[test]
    fn a_function_that_does_not_fit_is_told_with_both_shapes() {
        let greet = def(NewTaskDef::new("greet")
            .input("name", Type::Str)
            .input("times", Type::Int)
            .returns(Type::Str));
        check(&greet, &[TEXT, INTEGER]).unwrap();
        check(&greet, &[Expected::Anything, FLOAT]).unwrap();
        assert_eq!(returns(&greet), Some(Type::Str));
        let error = check(&greet, &[TEXT]).unwrap_err().to_string();
        assert_eq!(
            error,
            "the function for the TaskDef greet (name: STR, times: INT) -> STR: it takes 1 inputs, and the TaskDef has 2"
        );
        let error = check(&greet, &[TEXT, BOOL]).unwrap_err().to_string();
        assert!(error.ends_with("it takes BOOL as input 1, and `times` is INT"), "{error}");
    }

    #[test]
    fn a_task_def_may_return_nothing() {
        assert_eq!(returns(&def(NewTaskDef::new("quiet"))), None);
    }
}
