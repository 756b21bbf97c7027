//! PostgreSQL for tests: a private cluster, or a server that somebody gives us.
//!
//! A test that only needs a database asks [`database`] for one. A test in which the server has to fail
//! starts a [`Cluster`] of its own.

mod cluster;
mod error;
mod install;
mod pooler;
mod server;
mod shared;

pub use cluster::{Cluster, Options};
pub use error::Error;
pub use pooler::Pooler;
pub use server::Server;
pub use shared::{GIVEN, database};
