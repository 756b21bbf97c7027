//! How urgent a task is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// 0 to 9, higher first, 5 when nothing is said.
///
/// ```
/// use remuda_core::Priority;
/// assert_eq!(Priority::default().get(), 5);
/// assert!(Priority::new(10).is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Priority(u8);

/// A priority outside 0 to 9.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("priority {0} is out of range: 0 (lowest) to 9 (highest) are allowed")]
pub struct PriorityError(pub i64);

impl Priority {
    /// How many there are.
    pub const LEVELS: usize = 10;

    /// Checks the range.
    pub fn new(value: i64) -> Result<Self, PriorityError> {
        match u8::try_from(value) {
            Ok(level @ 0..=9) => Ok(Self(level)),
            _ => Err(PriorityError(value)),
        }
    }

    /// As a number, 0 to 9.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(5)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<i64> for Priority {
    type Error = PriorityError;

    fn try_from(value: i64) -> Result<Self, PriorityError> {
        Self::new(value)
    }
}

impl From<Priority> for i64 {
    fn from(priority: Priority) -> i64 {
        i64::from(priority.0)
    }
}
