//! Why somebody does not get what there is only so much of.

use remuda_pool::NotDone;

use super::Refusal;

/// Why somebody was turned away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TurnedAway {
    /// Everybody together has all of it.
    #[error("too many {what} at once")]
    Busy {
        /// What there are too many of.
        what: &'static str,
    },
    /// The caller alone has its share.
    #[error("too many {what} of one caller at once ({setting})")]
    Share {
        /// What it has too many of.
        what: &'static str,
        /// The setting that says how many there may be.
        setting: &'static str,
    },
    /// Too many bytes are under way.
    #[error("too many bytes are under way (server.memory)")]
    Memory,
    /// The pool did not do the work.
    #[error(transparent)]
    NotDone(#[from] NotDone),
}

impl TurnedAway {
    /// From a room that has this in it.
    pub(crate) fn from_room(refusal: Refusal, what: &'static str, setting: &'static str) -> Self {
        match refusal {
            Refusal::Whole => Self::Busy { what },
            Refusal::Share => Self::Share { what, setting },
        }
    }
}
