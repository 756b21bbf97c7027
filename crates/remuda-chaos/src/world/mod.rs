//! The installation under test: real processes, real sockets, a real PostgreSQL.

mod build;
mod part;
mod sim;

pub(crate) use build::{Net, World};
pub(crate) use part::Part;
pub(crate) use sim::{Counts, Loss, Sim};
