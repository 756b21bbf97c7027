//! What happened to a task: written in the transaction that made it happen.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{JsonText, Status, TaskId, Timestamp, Version};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// It came in.
    Submitted,
    /// A runner took it.
    Claimed,
    /// Another runner took over the attempt under way.
    Adopted,
    /// It was given back before it began, without blame.
    Returned,
    /// An attempt failed; another will follow.
    RetryScheduled,
    /// An attempt was lost with its machine; another will follow.
    Lost,
    /// Somebody wants it to stop; its runner does not know yet.
    CancelRequested,
    /// The end, good.
    Completed,
    /// The end, bad.
    Failed,
    /// The end, wanted.
    Cancelled,
}

impl EventKind {
    const ALL: [Self; 10] = [
        Self::Submitted,
        Self::Claimed,
        Self::Adopted,
        Self::Returned,
        Self::RetryScheduled,
        Self::Lost,
        Self::CancelRequested,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The name used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Claimed => "claimed",
            Self::Adopted => "adopted",
            Self::Returned => "returned",
            Self::RetryScheduled => "retry_scheduled",
            Self::Lost => "lost",
            Self::CancelRequested => "cancel_requested",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// As it is stored in feeds. Never changes.
    pub fn code(self) -> u8 {
        match self {
            Self::Submitted => 1,
            Self::Claimed => 2,
            Self::Adopted => 3,
            Self::Returned => 4,
            Self::RetryScheduled => 5,
            Self::Lost => 6,
            Self::CancelRequested => 7,
            Self::Completed => 8,
            Self::Failed => 9,
            Self::Cancelled => 10,
        }
    }

    /// By its code, if it is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The state that a task is in after it.
    pub fn status(self) -> Status {
        match self {
            Self::Submitted | Self::Returned | Self::RetryScheduled | Self::Lost => Status::Pending,
            Self::Claimed | Self::Adopted | Self::CancelRequested => Status::Running,
            Self::Completed => Status::Completed,
            Self::Failed => Status::Failed,
            Self::Cancelled => Status::Cancelled,
        }
    }

    /// Whether no event can follow.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for EventKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| format!("unknown event kind {text:?}"))
    }
}

/// One change of one task. Numbers have no gaps, so a reader that knows the last one it saw misses nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskEvent {
    /// Whose.
    pub task: TaskId,
    /// The task's version after the change; the first is 1.
    pub n: Version,
    /// When.
    pub at: Timestamp,
    /// What.
    pub kind: EventKind,
    /// More about it, by kind: worker, attempt, error, delay.
    pub data: JsonText,
}
