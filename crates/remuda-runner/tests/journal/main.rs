//! Herds that work for somebody else's queue, on simulated ComfyUIs: nothing is lost, and nothing is rendered twice.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

mod again;
mod away;
mod before;
mod chaos;
mod harm;
#[path = "../support/held.rs"]
mod held;
mod killed;
mod let_go;
mod over;
mod rig;
mod straight;
