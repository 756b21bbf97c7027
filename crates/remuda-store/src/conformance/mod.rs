//! The contract of [`crate::Store`] as tests that every implementation must pass.
//!
//! A backend implements [`Fixture`] for a fresh, empty place of its own and says
//!
//! ```text
//! async fn fixture() -> impl Fixture { … }
//! remuda_store::conformance_tests!(fixture);
//! ```
//!
//! which makes one test per case, so that a failure has a name. Cases move time with a
//! [`crate::ManualClock`] and wait for conditions, never for time to pass.

#![allow(clippy::expect_used, reason = "these are tests, although a library holds them")]

mod cases;
mod fixture;
mod world;

pub mod cancelling;
pub mod claiming;
pub mod errands;
pub mod feeding;
pub mod harming;
pub mod housekeeping;
pub mod laning;
pub mod leasing;
pub mod limiting;
pub mod losing;
pub mod moments;
pub mod origins;
pub mod owning;
pub mod queueing;
pub mod recording;
pub mod registering;
pub mod restarting;
pub mod sealing;
pub mod sharing;
pub mod storming;
pub mod submitting;
pub mod texts;
pub mod working;

pub use fixture::{Fixture, in_time};
