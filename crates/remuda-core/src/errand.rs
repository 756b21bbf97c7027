//! What is to be done outside when a task has ended.

use serde::{Deserialize, Serialize};

use crate::{Status, TaskId, Tenant, Timestamp};

/// How many bytes are kept of why a try failed.
const MOST_WHY: usize = 2_000;

/// Something to be done outside once a task has ended. It is kept with the task, falls due in the commit that ends it, and is
/// tried until it is done, whatever crashes in between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "errand", rename_all = "snake_case")]
pub enum Errand {
    /// The files of its result go to a sink.
    Deliver(Destination),
}

/// Where the files of a result go to, beside the file store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The name of a sink, given by the operator.
    pub sink: String,
    /// A folder there, inside the one of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

/// Which ends of its task an errand is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upon {
    /// Only a good one.
    Completed,
    /// Any.
    Ended,
}

impl Upon {
    /// As stores write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Ended => "ended",
        }
    }

    /// Everything that falls due when a task comes to this state; nothing, while it has not ended.
    ///
    /// ```
    /// use remuda_core::{Status, Upon};
    /// assert_eq!(Upon::due(Status::Completed), [Upon::Completed, Upon::Ended]);
    /// assert_eq!(Upon::due(Status::Failed), [Upon::Ended]);
    /// assert!(Upon::due(Status::Running).is_empty());
    /// ```
    pub fn due(status: Status) -> &'static [Self] {
        match status {
            Status::Completed => &[Self::Completed, Self::Ended],
            Status::Failed | Status::Cancelled => &[Self::Ended],
            Status::Pending | Status::Running => &[],
        }
    }
}

impl Errand {
    /// Which ends of its task it is for.
    pub fn upon(&self) -> Upon {
        match self {
            Self::Deliver(_) => Upon::Completed,
        }
    }
}

/// One try of an errand. The number of the try is its fence: what a later try was begun for is not changed by an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrandRef {
    /// Whose.
    pub task: TaskId,
    /// Which of the task's errands, from 0.
    pub n: i32,
    /// Which try, from 1.
    pub attempt: i32,
}

/// An errand that somebody has taken on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenErrand {
    /// The errand, and which try this is.
    pub at: ErrandRef,
    /// Whose task it is.
    pub tenant: Tenant,
    /// What is to be done.
    pub errand: Errand,
    /// When it fell due for the first time: when its task ended.
    pub since: Timestamp,
}

/// How far an errand is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrandState {
    /// Its task has not ended, or has ended in another way than the errand is for.
    Idle,
    /// It waits for a try, or is being tried.
    Due,
    /// It is done.
    Done,
    /// It could not be done and is not tried again.
    GivenUp,
}

impl ErrandState {
    /// Of an errand that is `due`, or `over`, or neither; over and with an error of its last try it was given up.
    pub fn of(due: bool, over: bool, error: bool) -> Self {
        match (due, over) {
            (_, true) if error => Self::GivenUp,
            (_, true) => Self::Done,
            (true, false) => Self::Due,
            (false, false) => Self::Idle,
        }
    }
}

/// Why a try failed, as much of it as is kept.
pub fn in_short(why: &str) -> &str {
    why.get(..why.floor_char_boundary(MOST_WHY)).unwrap_or(why)
}

/// What is known of an errand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrandRecord {
    /// Which of the task's errands, from 0.
    pub n: i32,
    /// What is to be done.
    pub errand: Errand,
    /// How far it is.
    pub state: ErrandState,
    /// How often it was begun.
    pub attempts: i32,
    /// When it is tried next, while it is due.
    pub due_at: Option<Timestamp>,
    /// When it was done or given up.
    pub over_at: Option<Timestamp>,
    /// Why the last try failed.
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of stores have it: a later release must read it.
    #[test]
    fn the_text_of_an_errand_does_not_change() {
        let deliver = Errand::Deliver(Destination { sink: "nas".to_owned(), folder: Some("a/b".to_owned()) });
        let text = r#"{"errand":"deliver","sink":"nas","folder":"a/b"}"#;
        assert_eq!(serde_json::to_string(&deliver).unwrap(), text);
        assert_eq!(serde_json::from_str::<Errand>(text).unwrap(), deliver);
    }

    #[test]
    fn what_is_kept_of_a_reason_is_text() {
        assert_eq!(in_short("no"), "no");
        assert_eq!(in_short(&"é".repeat(MOST_WHY)).len(), MOST_WHY);
        assert_eq!(in_short(&format!("x{}", "é".repeat(MOST_WHY))).len(), MOST_WHY - 1);
    }

    #[test]
    fn every_end_calls_for_what_is_for_any_end() {
        for status in Status::ALL {
            assert_eq!(Upon::due(status).contains(&Upon::Ended), status.is_terminal());
        }
    }
}
