//! The five states of a task, and why a pending one waits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a task is in its life. The last three never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waits; [`PendingReason`] says for what.
    Pending,
    /// A runner holds its lease.
    Running,
    /// Ended well; its result is there.
    Completed,
    /// Ended badly; its error is there.
    Failed,
    /// Ended because somebody said so.
    Cancelled,
}

impl Status {
    /// All, in the order of a task's life.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// Whether a task in it never changes again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// The name used everywhere: code, SQL, API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Status {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or_else(|| {
            format!("unknown status {text:?}: pending, running, completed, failed or cancelled are possible")
        })
    }
}

/// Why a pending task waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PendingReason {
    /// For the next free worker.
    Queued,
    /// For its start time.
    Scheduled,
    /// For the delay after a failure.
    Retry,
}

impl PendingReason {
    /// The name used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Scheduled => "scheduled",
            Self::Retry => "retry",
        }
    }
}

impl fmt::Display for PendingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for PendingReason {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Queued, Self::Scheduled, Self::Retry]
            .into_iter()
            .find(|reason| reason.as_str() == text)
            .ok_or_else(|| format!("unknown reason of pending {text:?}"))
    }
}
