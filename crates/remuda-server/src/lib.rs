//! Remuda over HTTP: tasks, events, files, workers, keys.
//!
//! [`Server`] answers on a listener that its caller owns until its caller says stop. Everything that matters is in the store:
//! a server can be killed at any moment, and any number of them can share one. [`janitor`] is the housekeeping beside it,
//! [`keys_socket`] the way in which `remuda keys` speaks to a running server.

mod access;
mod changes;
mod error;
mod extract;
mod frame_wire;
pub mod janitor;
pub mod keys_socket;
mod metrics;
mod options;
mod relay;
mod router;
mod routes;
mod server;
mod state;
mod waiting;
mod wire;

pub use options::{Limits, ServerOptions, TaskDefaults};
pub use server::{MetricsServer, Server};

/// The description of the API (OpenAPI), as JSON.
pub fn openapi() -> serde_json::Value {
    serde_json::to_value(routes::described()).unwrap_or_default()
}
