//! Connections: who is let in, who has to leave, and how long a peer may keep us waiting.

mod backlog;
mod connection;
mod lobby;
mod socket;

pub(crate) use backlog::deepen;
pub(crate) use connection::{Manners, attend, refuse};
pub(crate) use lobby::{Lobby, Seated};
