//! How an attempt ended, on its way to the server.

mod size;

use prost::Message;

use crate::error::{Error, Result};
use crate::proto;
use crate::proto::report_task_run::Result as Outcome;
use crate::value::Value;

/// The most that one report may have. The server's own limit is about 1,047,000 bytes for the record that it makes of it.
pub const REPORT_LIMIT: usize = 900_000;

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
    /// About an attempt that ended now; `log` is what the workflow's people read beside it. Too much log is cut in the
    /// middle.
    pub fn new(task: &proto::TaskRunId, attempt: i32, ending: &Ending, log: Option<&str>) -> Self {
        let (status, result) = wire(ending);
        let mut message = proto::ReportTaskRun {
            task_run_id: Some(task.clone()),
            time: Some(std::time::SystemTime::now().into()),
            status: status as i32,
            log_output: None,
            attempt_number: attempt,
            total_checkpoints: 0,
            result: Some(result),
        };
        let room = REPORT_LIMIT.saturating_sub(message.encoded_len());
        message.log_output = log
            .filter(|log| !log.is_empty())
            .and_then(|log| size::fitted(log, room))
            .map(|log| Value::Str(log).into());
        Self { message }
    }

    /// Says how many checkpoints the task has: those that were there, and those that this attempt made.
    #[must_use]
    pub fn with_checkpoints(mut self, total: i32) -> Self {
        self.message.total_checkpoints = total;
        self
    }

    /// The attempt that it is about.
    pub fn attempt(&self) -> i32 {
        self.message.attempt_number
    }

    /// How many bytes are sent.
    pub fn size(&self) -> usize {
        self.message.encoded_len()
    }

    /// Whether the server will take it. Only outputs can be too large: everything else is cut to fit.
    pub fn check(&self) -> Result<()> {
        match self.size() {
            bytes if bytes <= REPORT_LIMIT => Ok(()),
            bytes => Err(Error::TooLarge { what: "the output of a task".into(), bytes, limit: REPORT_LIMIT }),
        }
    }

    /// As bytes, to be kept.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.message.encode_to_vec()
    }

    /// From kept bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let message = proto::ReportTaskRun::decode(bytes)
            .map_err(|error| Error::value("a kept report", error.to_string()))?;
        Ok(Self { message })
    }

    /// The same without the log.
    pub(crate) fn without_log(&self) -> Self {
        Self { message: proto::ReportTaskRun { log_output: None, ..self.message.clone() } }
    }
}

fn wire(ending: &Ending) -> (proto::TaskStatus, Outcome) {
    use proto::{LhErrorType, TaskStatus};
    let error = |kind: LhErrorType, message: &str| {
        Outcome::Error(proto::LhTaskError { r#type: kind as i32, message: size::message(message) })
    };
    match ending {
        // Always with an output: a success without one breaks the workflow.
        Ending::Success(output) => (TaskStatus::TaskSuccess, Outcome::Output(output.clone().into())),
        Ending::Failed { message } => (TaskStatus::TaskFailed, error(LhErrorType::TaskFailure, message)),
        Ending::Exception { name, message, content } => {
            (TaskStatus::TaskException, Outcome::Exception(exception(name, message, content)))
        }
        Ending::BadInput { message } => {
            (TaskStatus::TaskInputVarSubError, error(LhErrorType::VarSubError, message))
        }
        Ending::BadOutput { message } => {
            (TaskStatus::TaskOutputSerdeError, error(LhErrorType::VarMutationError, message))
        }
    }
}

fn exception(name: &str, message: &str, content: &Value) -> proto::LhTaskException {
    let mut message = size::message(message);
    let mut content: proto::VariableValue = content.clone().into();
    let bytes = content.encoded_len();
    if bytes > size::CONTENT {
        // The name is what the workflow acts on: it has to arrive.
        message.push_str(&format!(" (its content of {bytes} bytes was too large and is left out)"));
        content = Value::Null.into();
    }
    proto::LhTaskException { name: name.to_owned(), message, content: Some(content) }
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The server has it.
    Yes,
    /// The server says that the attempt is over or unknown: there is nothing more to do.
    TooLate,
}
