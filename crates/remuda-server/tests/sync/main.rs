//! The synchronous handler over a real socket, on a real SQLite store, in front of simulated ComfyUIs.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on should say so and stop"
)]

mod answers;
mod errors;
mod leaving;
mod limits;
mod pen;
#[path = "../native/rig.rs"]
mod rig;
#[allow(dead_code, reason = "the tests of our own API use all of it")]
#[path = "../api/support.rs"]
mod support;
