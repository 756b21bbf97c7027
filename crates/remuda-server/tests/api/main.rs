//! The API over a real socket, on a real SQLite store and a real directory of files. Runners are played by hand,
//! through the store, so that every state can be looked at.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on should say so and stop"
)]

mod access;
mod assets;
mod bad_input;
mod browsers;
mod cancel;
mod counted;
mod events;
mod feed;
mod graph_limits;
mod health;
mod held;
mod janitor;
mod keys_socket;
mod list;
mod openapi;
mod outputs;
mod preflight;
mod quotas;
mod record;
mod relay;
mod retry;
mod revoked;
mod secrets;
mod shutdown;
mod submit;
mod support;
mod waiting;
mod workers;
