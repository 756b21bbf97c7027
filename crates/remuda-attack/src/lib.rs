//! Attacks a real Remuda from outside, and checks that its other guests notice nothing.
//!
//! ```text
//!   catalogue ──▶ run ──▶ world: server, ComfyUIs, sidecar, keys ◀── probe: a second tenant, and /live
//!                  │            ▲                                        │
//!                  ▼            │ from 127.0.0.66, niced                 ▼
//!            attacker (a process of its own) ──▶ violations ──▶ judge ──▶ report: table, JSON, Markdown
//! ```
//!
//! Everything happens over the network and by signals: this crate uses none of Remuda's own code, so that both cannot
//! be wrong in the same way. The attacker is a process of its own with the lowest priority and an address of its own,
//! so that what the second tenant feels is the server's doing and not the machine's.

mod attacks;
mod catalogue;
mod deed;
mod dice;
mod fuzz;
mod hostile;
mod judge;
mod killed;
mod options;
mod probe;
mod raw;
mod report;
mod run;
mod stage;
mod world;

pub use attacks::attacker;
pub use catalogue::{Attack, CATALOGUE, Kind};
pub use fuzz::{FuzzOptions, FuzzReport, fuzz};
pub use judge::{Measured, Spread};
pub use options::Options;
pub use report::{HEAD, Line, Report};
pub use run::run;
pub use stage::{Keys, Setup, Stage};
