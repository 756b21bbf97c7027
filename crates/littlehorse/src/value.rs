//! Values, and their way from and to Rust's types.

/// A value of a variable, an input or an output.
#[derive(Debug, Clone, PartialEq)]
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
}
