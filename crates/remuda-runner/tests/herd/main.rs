//! Herds of runners on simulated ComfyUIs with a real store: nothing is lost, and nothing is rendered twice.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

mod adoption;
mod away;
mod chaos;
mod comfyui_fails;
mod excess;
#[path = "../support/held.rs"]
mod held;
mod messages;
mod rig;
mod stops;
mod straight;
