//! What goes wrong around `remuda worker --source littlehorse`: no task is lost, and none is rendered twice without a reason.
#![cfg(unix)]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "clippy does not see that the helpers are part of tests"
)]

mod access;
mod disk;
mod kills;
mod lost;
mod outages;
mod renders;
mod rig;
mod sizes;
#[allow(dead_code, reason = "the other tests of the worker use the rest")]
#[path = "../littlehorse/stage.rs"]
mod stage;
mod streams;
#[path = "../support/mod.rs"]
mod support;
