//! The loop that drives one worker, and the attempts it runs there.
//!
//! [`Runner`] decides what a worker gets: it holds the worker's lease, knows its health, claims, and sweeps. Each claim
//! becomes an attempt, a task of its own that goes from placing to reporting; it tells the runner its [`Stage`], so that
//! the next one can be claimed while the last one is still being delivered.

mod adopt;
mod attempt;
mod collect;
mod compute;
mod event;
mod follow;
mod inspect;
mod look;
mod prepare;
mod report;
mod service;
mod steps;
mod sweep;
mod worker;

pub(crate) use event::Stage;
pub(crate) use service::{Purpose, Runner};
