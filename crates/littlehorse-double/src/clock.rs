//! Time that can be moved forward.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prost_types::Timestamp;
use tokio::time::Instant;

/// Real time, and what tests have added to it.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    added: Mutex<Duration>,
}

impl Clock {
    pub(crate) fn now(&self) -> Instant {
        Instant::now() + self.added()
    }

    pub(crate) fn timestamp(&self) -> Timestamp {
        let now = jiff::Timestamp::now().checked_add(self.added()).unwrap_or(jiff::Timestamp::MAX);
        Timestamp { seconds: now.as_second(), nanos: now.subsec_nanosecond() }
    }

    pub(crate) fn advance(&self, by: Duration) {
        *self.added.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }

    /// When a moment of this clock will be in real time.
    pub(crate) fn real(&self, moment: Instant) -> Instant {
        moment.checked_sub(self.added()).unwrap_or_else(Instant::now)
    }

    fn added(&self) -> Duration {
        *self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
