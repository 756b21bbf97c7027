//! Herds of runners on simulated ComfyUIs with a real store: nothing is lost, and nothing is rendered twice.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

mod rig;
mod straight;
