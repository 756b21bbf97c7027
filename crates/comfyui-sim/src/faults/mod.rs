//! What can go wrong, on request.
//!
//! ```text
//!  sim.faults().add(…)  ─┐                ┌─ each request asks for its plan        (http)
//!  POST /sim/faults     ─┼─▶ the book ────┼─ each socket asks what befalls it      (http)
//!  remuda sim --fault … ─┘                ├─ the supervisor takes what hits the process
//!                                         └─ the engine asks once for each prompt
//! ```
//! A [`Fault`] says what happens, to which requests, how often and for how long. The book only decides; the
//! parts that ask do the damage themselves. Requests below `/sim/` are never hit.

mod book;
mod dice;
mod fault;
mod route;
mod spec;

pub(crate) use book::{After, Before, Plan, ProcessFault, SocketFault, SocketFaultKind};
pub use book::{FaultId, FaultReport, Faults};
pub use fault::{Fault, FaultKind};
pub use route::{RouteFilter, RouteFilterError};
pub use spec::{FaultError, KindName};
