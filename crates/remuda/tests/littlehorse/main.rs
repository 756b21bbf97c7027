//! `remuda worker --source littlehorse` as a process, between a double of a LittleHorse server and simulated ComfyUIs.
#![cfg(unix)]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "clippy does not see that the helpers are part of tests"
)]

mod classes;
mod deploy;
mod ends;
mod faults;
mod lives;
mod moves;
mod options;
mod stage;
mod starts;
#[path = "../support/mod.rs"]
mod support;
