//! Breaks everything around real Remuda processes at random, and checks that nothing was lost or done twice.
//!
//! ```text
//!   plan (seeded) ──▶ drive: clients submit, watch, cancel ──▶ world: servers, sidecars, simulators, PostgreSQL
//!                      └──── lanes of faults kill, stop, cut and mute it ──▲            │
//!                                                                                       ▼
//!   report: table, folder of evidence ◀── check (pure) ◀── gather: API, files, simulators' own counts
//! ```
//!
//! Everything is driven from outside, as processes over HTTP: this crate uses none of Remuda's own code, so that
//! both cannot be wrong in the same way. What is left to chance comes from one seed; the moments at which
//! things meet do not, for they are the machine's.

mod api;
mod check;
mod dice;
mod drive;
mod gather;
mod options;
mod plan;
mod report;
mod run;
mod world;

pub use options::{Options, Scenario};
pub use report::Report;
pub use run::run;
