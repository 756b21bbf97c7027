//! What attackers do, by topic. Each function returns what it should not have been able to do.

pub(crate) mod answers;
pub(crate) mod claims;
mod cluster;
pub(crate) mod deliveries;
pub(crate) mod descriptions;
mod enter;
pub(crate) mod fair;
pub(crate) mod feeds;
pub(crate) mod graphs;
pub(crate) mod lanes;
pub(crate) mod mass;
pub(crate) mod memory;
pub(crate) mod names;
pub(crate) mod pages;
pub(crate) mod pictures;
pub(crate) mod proxies;
pub(crate) mod replayed;
pub(crate) mod secrets;
pub(crate) mod share;
pub(crate) mod stored;
pub(crate) mod unread;
pub(crate) mod values;
pub(crate) mod workers;

pub use enter::attacker;
