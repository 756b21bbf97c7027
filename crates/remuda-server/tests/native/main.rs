//! ComfyUI's own API over a real socket, on a real SQLite store, with simulated ComfyUIs where something is rendered.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on should say so and stop"
)]

mod access;
mod files;
mod fleet;
mod frontend;
mod prompts;
mod rig;
mod socket;
#[allow(dead_code, reason = "the tests of our own API use all of it")]
#[path = "../api/support.rs"]
mod support;
mod user;
