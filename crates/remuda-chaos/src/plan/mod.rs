//! What is decided by the seed alone: which tasks there are, and which faults come in which order.

mod fault;
mod graph;
mod job;

pub(crate) use fault::{Deck, Fault, FleetFault, NetFault, OwnField, SimFault, StoreFault};
pub(crate) use job::Job;
#[cfg(test)]
pub(crate) use job::Work;
