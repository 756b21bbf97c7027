//! How an attempt ended, on its way to the server.

use crate::proto;
use crate::value::Value;

/// How a task ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// Well; `Value::Null` for nothing.
    Success(Value),
    /// It failed; the server tries again if the workflow allows.
    Failed {
        /// For people.
        message: String,
    },
    /// It failed in a way that the workflow can handle by its name. It is not tried again.
    Exception {
        /// Letters, digits and hyphens; none of LittleHorse's own error names.
        name: String,
        /// For people.
        message: String,
        /// For the handler.
        content: Value,
    },
    /// Its inputs make no sense. It is not tried again.
    BadInput {
        /// For people.
        message: String,
    },
    /// Its output cannot be sent. It is not tried again.
    BadOutput {
        /// For people.
        message: String,
    },
}

/// A report, ready to be sent, kept, and sent again.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// As it goes over the wire.
    pub message: proto::ReportTaskRun,
}

impl Report {
    /// About an attempt; `log` is what the workflow's people read beside it. Too much log is cut in the middle.
    pub fn new(_task: &proto::TaskRunId, _attempt: i32, _ending: &Ending, _log: Option<&str>) -> Self {
        todo!()
    }

    /// As bytes, to be kept.
    pub fn to_bytes(&self) -> Vec<u8> {
        todo!()
    }

    /// From kept bytes.
    pub fn from_bytes(_bytes: &[u8]) -> crate::Result<Self> {
        todo!()
    }
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The server has it.
    Yes,
    /// The server says that the attempt is over or unknown: there is nothing more to do.
    TooLate,
}
