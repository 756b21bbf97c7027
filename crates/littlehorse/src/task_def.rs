//! What a task takes and returns.

use crate::proto;

/// The type of an input or output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A JSON object.
    JsonObj,
    /// A JSON array.
    JsonArr,
    /// A 64-bit float.
    Double,
    /// Yes or no.
    Bool,
    /// Text.
    Str,
    /// A 64-bit integer.
    Int,
    /// Bytes.
    Bytes,
    /// The id of a workflow run.
    WfRunId,
    /// A moment.
    Timestamp,
}

/// A TaskDef to register.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTaskDef {
    /// As it goes over the wire.
    pub request: proto::PutTaskDefRequest,
}

impl NewTaskDef {
    /// Without inputs and output.
    pub fn new(_name: impl Into<String>) -> Self {
        todo!()
    }

    /// One more input.
    #[must_use]
    pub fn input(self, _name: &str, _of: Type) -> Self {
        todo!()
    }

    /// What it returns.
    #[must_use]
    pub fn returns(self, _of: Type) -> Self {
        todo!()
    }
}

/// What became of a registration.
#[derive(Debug, Clone, PartialEq)]
pub enum Registered {
    /// It is registered as it was asked for, now or before.
    Same(proto::TaskDef),
    /// Another TaskDef has the name.
    Differs(proto::TaskDef),
}
