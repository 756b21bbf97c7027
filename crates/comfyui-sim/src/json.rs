//! JSON as Python's `json` module reads and writes it.
//!
//! ComfyUI's answers carry Python's habits: integers of any size, floats that stay floats (`1.0`,
//! `1e-05`), bare `NaN` and `Infinity`, `", "` and `": "` as separators, everything outside ASCII
//! escaped, key order kept, the last of doubled keys winning. Error texts embed Python's `repr`.
//! `serde_json::Value` keeps none of these, hence a small type of our own.

use indexmap::IndexMap;

/// An object in insertion order.
pub type Dict = IndexMap<String, Json>;

/// One JSON value with Python's distinctions.
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
