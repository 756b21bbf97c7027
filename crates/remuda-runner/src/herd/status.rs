//! What a herd shows of itself.

use remuda_core::{LeaseRef, OwnerId, Phase, WorkerReport, WorkerSpec};
use serde::Serialize;

use crate::CountersSnapshot;

/// A herd at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct HerdStatus {
    /// Every worker that it was told of, by name.
    pub workers: Vec<WorkerState>,
    /// Counts since its start.
    pub counters: CountersSnapshot,
}

/// One worker at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerState {
    /// What it was told.
    pub spec: WorkerSpec,
    /// Whether this process drives it.
    pub driven: bool,
    /// The process that drives it instead, when it is known.
    pub held_by: Option<OwnerId>,
    /// How it is.
    pub report: WorkerReport,
    /// What is under way on it.
    pub leases: Vec<LeaseState>,
}

/// One attempt under way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LeaseState {
    /// Which.
    pub lease: LeaseRef,
    /// How far.
    pub phase: Phase,
    /// How much is done, 0 to 1.
    pub progress: f64,
}
