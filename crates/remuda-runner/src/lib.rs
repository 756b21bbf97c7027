//! The loop that drives one ComfyUI: claim, place, submit, watch, collect, report.
//!
//! A [`source::Source`] is where tasks come from and go back to; the queue is the first. A [`Herd`] is all runners of one
//! process. Live frames of running tasks go to a [`frames::FrameHub`], never through the database.
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

mod board;
mod counters;
mod decide;
pub mod frames;
#[cfg(test)]
mod growth;
mod herd;
mod limits;
mod names;
mod options;
pub mod preflight;
mod runner;
pub mod source;
pub mod wire;

/// ComfyUI's own words, for those who read what runners found out.
pub use comfyui::{Version, lenient, object_info};
pub use counters::{Counters, CountersSnapshot};
pub use decide::health::QuarantineRules;
pub use herd::{Herd, HerdStatus, LeaseState, WorkerState};
pub use limits::{GraphLimits, setting as limit_setting};
pub use names::{host_id, worker_id_for};
pub use options::{HerdOptions, ResultLimits, Timing, WorkerConfig};
