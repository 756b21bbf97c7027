//! All runners of one process, and the one loop that keeps their leases.

mod beat;
mod service;
mod shared;
mod status;

pub use service::Herd;
pub(crate) use shared::{Shared, jitter};
pub use status::{HerdStatus, LeaseState, WorkerState};
