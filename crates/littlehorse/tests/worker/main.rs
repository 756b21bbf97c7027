//! Workers with task functions, at a double of the server.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

mod checkpoints;
mod endings;
mod outages;
mod places;
mod rig;
mod start;
mod stops;
