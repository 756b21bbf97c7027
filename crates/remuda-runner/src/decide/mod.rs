//! Decisions of a runner as plain functions over values: no socket, no store, no clock of their own.

pub(crate) mod adoption;
pub(crate) mod edits;
pub(crate) mod extra;
pub(crate) mod graph;
pub(crate) mod health;
pub(crate) mod marker;
pub(crate) mod offer;
pub(crate) mod outcome;
pub(crate) mod progress;
pub(crate) mod submission;
pub(crate) mod wish;
