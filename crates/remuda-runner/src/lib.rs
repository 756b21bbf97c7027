//! The loop that drives one ComfyUI: claim, place, submit, watch, collect, report.
//!
//! A [`source::Source`] is where tasks come from and go back to; the queue is the first. A [`Herd`] is all runners of one
//! process. Live frames of running tasks go to a [`remuda_frames::FrameHub`], never through the database.
//!
//! ```text
//!                 ┌────────────── Herd ───────────────┐
//!  Source ◀─beat──┤ beat loop ◀── board ──▶ signals   │
//!    ▲            │                 ▲          │      │
//!    │  claim     │   ┌─────────────┴──────────▼──┐   │
//!    ├────────────┼───┤ runner, one per worker    │   │      ComfyUI
//!    │            │   │  claims, health, sweeps ──┼───┼────▶ queue, stats
//!    │  end       │   │  attempt, one per lease ──┼───┼────▶ upload, prompt, history, view
//!    └────────────┼───┤    place submit watch     │   │
//!                 │   │    collect report         │   │
//!                 │   └───────────────────────────┘   │
//!                 └───────────────────────────────────┘
//! ```
//!
//! Whoever holds a lease may act for it; every act at ComfyUI is preceded by a look at when the lease was last renewed
//! ([`Timing::stale`]). What a runner decides is in `decide`, as functions over values.

pub mod ask;
mod board;
mod counters;
mod decide;
#[cfg(test)]
mod growth;
mod herd;
mod names;
mod options;
mod runner;
pub mod source;

pub use counters::{Counters, CountersSnapshot};
pub use decide::health::QuarantineRules;
pub use herd::{Herd, HerdStatus, LeaseState, WorkerState};
pub use names::{host_id, worker_id_for};
pub use options::{HerdOptions, ResultLimits, Timing, WorkerConfig};
