//! What one guest can take from the others, over real sockets: permits, memory, connections, requests.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on should say so and stop"
)]

mod connections;
mod memory;
mod shares;
mod stalls;
#[allow(dead_code, reason = "the tests of our own API use all of it")]
#[path = "../api/support.rs"]
mod support;
mod wire;
