//! The messages as they go over the wire, generated from `proto/littlehorse.proto`.
#![allow(missing_docs, unreachable_pub, clippy::all)]

mod any_value;

pub use any_value::{VariableValue, variable_value};

include!("proto/generated.rs");
