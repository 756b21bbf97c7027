#![doc = include_str!("../README.md")]

mod access;
mod changes;
mod compute;
mod dialect;
mod door;
mod error;
mod extract;
mod feed;
mod form;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod janitor;
pub mod keys_socket;
mod metrics;
mod native;
mod options;
mod permits;
mod relay;
mod router;
mod routes;
mod sentry;
mod server;
mod service;
mod share;
mod state;
mod sync;
mod unnamed;
mod wire;

pub use native::{NoFrontend, frontend_folder};
pub use options::{Limits, ServerOptions, SyncOptions, TaskDefaults};
pub use server::Server;
pub use share::{BadNetwork, Network};

/// The description of the API (OpenAPI), as JSON.
pub fn openapi() -> serde_json::Value {
    serde_json::to_value(routes::described()).unwrap_or_default()
}
