//! Time as a parameter.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use remuda_core::Timestamp;

/// Where a store takes the time from. PostgreSQL uses the database's own unless it is given one.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present moment, to the microsecond.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        microseconds(Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

/// A clock that stands still until it is told to jump, in either direction. For tests.
///
/// ```
/// use std::time::Duration;
/// use remuda_store::{Clock, ManualClock};
/// let clock = ManualClock::default();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(clock.now().duration_since(before).as_secs(), 5);
/// ```
#[derive(Debug)]
pub struct ManualClock {
    now: Mutex<Timestamp>,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self { now: Mutex::new(SystemClock.now()) }
    }
}

impl ManualClock {
    /// Jumps forward.
    pub fn advance(&self, by: Duration) {
        self.change(|now| now.checked_add(by).unwrap_or(Timestamp::MAX));
    }

    /// Jumps back.
    pub fn set_back(&self, by: Duration) {
        self.change(|now| now.checked_sub(by).unwrap_or(Timestamp::MIN));
    }

    fn change(&self, change: impl FnOnce(Timestamp) -> Timestamp) {
        let mut now = self.now.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *now = microseconds(change(*now));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.now.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Both databases keep microseconds; a finer moment would come back changed.
fn microseconds(moment: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(moment.as_microsecond()).unwrap_or(moment)
}
