//! Runners that know nothing of the installation but a URL and a key.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

mod access;
mod again;
mod bounds;
mod fences;
mod files;
mod frames;
mod ground;
mod herd;
mod rights;
mod upgrade;
mod waiting;
