//! A real LittleHorse server for tests, with the Kafka that it needs.
//!
//! `cargo xtask test --littlehorse` fetches both, tells the tests by [`GIVEN`] where they are, and runs them.
//! [`LittleHorseServer`] is one cluster, [`Workflows`] makes workflows there and looks at their runs, which a worker never does.

mod error;
mod install;
mod properties;
mod proto;
mod server;
mod workflows;

pub use error::Error;
pub use install::GIVEN;
pub use server::LittleHorseServer;
pub use workflows::{Attempt, Failure, Input, Run, RunStatus, TaskStatus, Workflow, Workflows};
