//! How a task function fails.

use std::fmt;

use crate::report::Ending;
use crate::value::Value;

/// LittleHorse's own names of failures. An exception that has one of them counts as a technical failure.
const RESERVED: &[&str] = &[
    "CHILD_FAILURE",
    "VAR_SUB_ERROR",
    "VAR_MUTATION_ERROR",
    "USER_TASK_CANCELLED",
    "TIMEOUT",
    "TASK_FAILURE",
    "VAR_ERROR",
    "TASK_ERROR",
    "INTERNAL_ERROR",
];

/// How a task function fails.
///
/// Every error of Rust becomes [`TaskError::Failed`] by `?`, with its causes. That is why this type itself is none.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TaskError {
    /// The server tries again, if the workflow allows.
    Failed(String),
    /// The workflow can handle it by its name. It is not tried again.
    Exception {
        /// Letters, digits and hyphens; none of LittleHorse's own error names.
        name: String,
        /// For people.
        message: String,
        /// For the handler. Boxed, so that a result is no larger for it.
        content: Box<Value>,
    },
    /// The inputs make no sense. It is not tried again.
    BadInput(String),
    /// The server has given this attempt up; whatever it would report is not heard. Comes from
    /// [`TaskContext::checkpoint`](crate::TaskContext::checkpoint): hand it on.
    Superseded,
}

impl TaskError {
    /// A failure: the server tries again, if the workflow allows.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::Failed(message.to_string())
    }

    /// A business exception: the workflow can handle it by its name. It is not tried again.
    pub fn exception(name: impl Into<String>, message: impl fmt::Display) -> Self {
        Self::Exception { name: name.into(), message: message.to_string(), content: Box::new(Value::Null) }
    }

    /// Gives an exception something for its handler.
    #[must_use]
    pub fn with_content(self, value: Value) -> Self {
        match self {
            Self::Exception { name, message, .. } => Self::Exception { name, message, content: value.into() },
            other => other,
        }
    }

    /// What is reported; nothing when nobody would hear it.
    pub(super) fn ending(self) -> Option<Ending> {
        match self {
            Self::Failed(message) => Some(Ending::Failed { message }),
            Self::Exception { name, message, content } => Some(match refused(&name) {
                None => Ending::Exception { name, message, content: *content },
                Some(why) => Ending::Failed {
                    message: format!("the exception name {name:?} {why}; its message: {message}"),
                },
            }),
            Self::BadInput(message) => Some(Ending::BadInput { message }),
            Self::Superseded => None,
        }
    }
}

/// Why a name cannot be the name of an exception.
fn refused(name: &str) -> Option<&'static str> {
    if RESERVED.contains(&name) {
        return Some("is one of LittleHorse's own");
    }
    let fine = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    (!fine).then_some("may only have letters, digits and hyphens")
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(message) | Self::BadInput(message) => f.write_str(message),
            Self::Exception { name, message, .. } => write!(f, "{name}: {message}"),
            Self::Superseded => f.write_str("the server has given this attempt up"),
        }
    }
}

impl<E: std::error::Error> From<E> for TaskError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            message.push_str(": ");
            message.push_str(&error.to_string());
            cause = error.source();
        }
        Self::Failed(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_rust_are_failures_with_their_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read the order")]
        struct Outer(#[source] std::num::ParseIntError);

        let error = Outer("x".parse::<i32>().unwrap_err());
        assert_eq!(
            TaskError::from(error).ending(),
            Some(Ending::Failed {
                message: "cannot read the order: invalid digit found in string".to_owned()
            })
        );
    }

    #[test]
    fn exceptions_have_names_that_workflows_can_handle() {
        let error = TaskError::exception("out-of-stock", "no more").with_content(Value::Int(3));
        assert_eq!(
            error.ending(),
            Some(Ending::Exception {
                name: "out-of-stock".to_owned(),
                message: "no more".to_owned(),
                content: Value::Int(3)
            })
        );
        for name in ["TIMEOUT", "", "out of stock", "größe"] {
            let Some(Ending::Failed { message }) = TaskError::exception(name, "why").ending() else {
                panic!("{name:?} is a name");
            };
            assert!(message.contains(name) && message.contains("why"), "{message}");
        }
    }

    #[test]
    fn what_the_server_has_given_up_is_not_reported() {
        assert_eq!(TaskError::Superseded.ending(), None);
    }
}
