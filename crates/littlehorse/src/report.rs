//! How an attempt ended, on its way to the server.

mod size;

use prost::Message;

use crate::error::{Error, Result};
use crate::proto;
use crate::proto::report_task_run::Result as Outcome;
use crate::value::Value;

/// The most that one report may have. The server's own limit is about 1,047,000 bytes for the record that it makes of it, and
/// it does not say when that is the reason of a refusal.
pub const REPORT_LIMIT: usize = 900_000;
/// The most that the log of one attempt may have: the server keeps the logs of all attempts in one record.
pub const LOG_LIMIT: usize = 128 * 1024;

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
        let message = proto::ReportTaskRun {
            task_run_id: Some(task.clone()),
            time: Some(std::time::SystemTime::now().into()),
            status: status as i32,
            log_output: None,
            attempt_number: attempt,
            total_checkpoints: 0,
            result: Some(result),
        };
        Self { message }.with_log(log.unwrap_or_default(), 0)
    }

    /// Makes room for this many bytes beside it, at the cost of the log: the server keeps a task's inputs in the same record,
    /// and forgets how the task ended when that is too large. See [`Delivery::size`](crate::Delivery::size).
    #[must_use]
    pub fn beside(mut self, bytes: usize) -> Self {
        match self.message.log_output.take() {
            Some(proto::VariableValue { value: Some(proto::variable_value::Value::Str(log)) }) => {
                self.with_log(&log, bytes)
            }
            _ => self,
        }
    }

    fn with_log(mut self, log: &str, beside: usize) -> Self {
        let room = REPORT_LIMIT.saturating_sub(self.size()).saturating_sub(beside).min(LOG_LIMIT);
        if !log.is_empty() {
            self.message.log_output = size::fitted(log, room).map(|log| Value::Str(log).into());
        }
        self
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

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> proto::TaskRunId {
        let run = proto::WfRunId { id: "run".into(), parent_wf_run_id: None };
        proto::TaskRunId { wf_run_id: Some(run), task_guid: "0-1".into() }
    }

    fn report(ending: &Ending, log: Option<&str>) -> Report {
        Report::new(&task(), 3, ending, log)
    }

    fn log_of(report: &Report) -> Option<String> {
        match Value::try_from(report.message.log_output.clone()?).unwrap() {
            Value::Str(text) => Some(text),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_ending_has_its_status() {
        use proto::{LhErrorType as Kind, TaskStatus as Status};
        let message = || "why".to_owned();
        for (ending, status, kind) in [
            (Ending::Failed { message: message() }, Status::TaskFailed, Kind::TaskFailure),
            (Ending::BadInput { message: message() }, Status::TaskInputVarSubError, Kind::VarSubError),
            (Ending::BadOutput { message: message() }, Status::TaskOutputSerdeError, Kind::VarMutationError),
        ] {
            let report = report(&ending, None);
            assert_eq!((report.message.status(), report.attempt()), (status, 3));
            let error = proto::LhTaskError { r#type: kind as i32, message: message() };
            assert_eq!(report.message.result, Some(Outcome::Error(error)));
        }
        let done = report(&Ending::Success(Value::Null), Some("")).with_checkpoints(2);
        assert_eq!(done.message.result, Some(Outcome::Output(proto::VariableValue { value: None })));
        assert_eq!((done.message.log_output, done.message.total_checkpoints), (None, 2));
    }

    #[test]
    fn a_long_log_is_cut_so_that_the_output_fits() {
        let log = format!("first{}last", "l".repeat(600_000));
        for (output, least) in [(10, LOG_LIMIT - 100), (850_000, 49_000)] {
            let output = Value::Str("o".repeat(output));
            let report = report(&Ending::Success(output), Some(&log));
            assert!(report.check().is_ok());
            let kept = log_of(&report).unwrap();
            assert!(kept.starts_with("first") && kept.ends_with("last") && kept.contains("left out here"));
            assert!(kept.len() > least && kept.len() <= LOG_LIMIT, "{}", kept.len());
        }
    }

    #[test]
    fn large_inputs_leave_less_room_for_the_log() {
        let report = report(&Ending::Success(Value::Null), Some(&"l".repeat(100_000)));
        assert_eq!(report.clone().beside(700_000), report);
        let tight = report.clone().beside(850_000);
        assert!(tight.size() <= 50_000 && tight.size() > 49_000, "{}", tight.size());
        assert_eq!(log_of(&report.clone().beside(2_000_000)), None);
        assert_eq!(log_of(&report.without_log()), None);
    }

    #[test]
    fn an_output_that_is_too_large_is_known_before_it_is_sent() {
        let report = report(&Ending::Success(Value::Str("o".repeat(REPORT_LIMIT))), Some("log"));
        let told = report.check().unwrap_err().to_string();
        assert_eq!(
            told,
            format!("the output of a task has {} bytes, and the server takes 900000 at most", report.size())
        );
        assert_eq!(log_of(&report), None);
    }

    #[test]
    fn an_exception_arrives_by_its_name_however_large_it_is() {
        let report = report(
            &Ending::Exception {
                name: "too-big".into(),
                message: "m".repeat(1_000_000),
                content: Value::Bytes(vec![0; 1_000_000]),
            },
            Some(&"l".repeat(2_000_000)),
        );
        assert!(report.check().is_ok());
        let Some(Outcome::Exception(exception)) = report.message.result else { panic!("no exception") };
        assert_eq!((exception.name.as_str(), exception.content), ("too-big", Some(Value::Null.into())));
        assert!(exception.message.ends_with("(its content of 1000004 bytes was too large and is left out)"));
    }

    #[test]
    fn kept_bytes_that_are_none_are_an_error() {
        assert!(Report::from_bytes(b"{}").is_err());
    }
}
