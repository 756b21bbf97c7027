//! Everything that can wake a runner.

use std::sync::Arc;

use comfyui::{PromptId, Session, SystemStats};
use remuda_core::{Claim, FailureClass, LeaseRef};
use remuda_store::Acquired;

use super::inspect::chain;
use super::sweep::Swept;
use super::worker::Ready;
use crate::board::Moment;
use crate::source::Result;

/// Where an attempt is, as far as the next claim is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Inputs are placed; or, after an adoption, it is looked for.
    Preparing,
    /// In ComfyUI's queue.
    Sent,
    /// ComfyUI works on it.
    Rendering,
    /// ComfyUI is done with it.
    Delivering,
}

/// How an attempt ended, as far as its worker is concerned.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fate {
    Completed,
    Failed {
        class: FailureClass,
        /// Whether it had the worker to itself: one that only waited behind another says nothing about the worker.
        alone: bool,
        /// What happened.
        why: String,
    },
    /// Cancelled, given back, lost to somebody else, or left for adoption.
    Gone,
}

/// A prompt that the worker does not run and does not let go: as long as it is in the queue, the worker is dead.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tombstone {
    pub(crate) prompt: PromptId,
    pub(crate) why: String,
}

/// What an attempt tells its runner on the way.
#[derive(Debug)]
pub(crate) enum Word {
    Stage(LeaseRef, Stage),
    /// The worker turned out to be dead.
    Dead(Tombstone),
    /// Something was found missing that the worker's description did not show: it should be described anew.
    Outdated,
    /// The worker answered with more than it may.
    Excess(String),
}

/// Why a worker could not be looked at.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unwell {
    /// For people.
    pub(crate) why: String,
    /// It answered, with more than it may.
    pub(crate) excess: bool,
}

impl From<String> for Unwell {
    fn from(why: String) -> Self {
        Self { why, excess: false }
    }
}

impl From<&comfyui::Error> for Unwell {
    fn from(error: &comfyui::Error) -> Self {
        Self { why: chain(error), excess: error.is_too_large() }
    }
}

/// Everything that can wake a runner.
pub(crate) enum Event {
    /// The worker's lease was asked for.
    Acquired(Moment, Result<Box<Acquired>>),
    /// The attempts on the worker were asked for.
    Adopted(Moment, Result<Vec<Claim>>),
    /// ComfyUI was looked over.
    Inspected(std::result::Result<Box<Inspected>, Unwell>),
    /// ComfyUI was asked whether it answers.
    Probed(std::result::Result<Box<SystemStats>, Unwell>),
    /// The prompts in its queue were compared with the leases.
    Swept(std::result::Result<Swept, Unwell>),
    /// A claim came back.
    Claimed(Moment, Result<Option<Box<Claim>>>),
    /// An attempt tells something.
    Word(Word),
    /// An attempt is over.
    Ended(LeaseRef, Fate),
    /// Frames of ComfyUI begin or cease to arrive.
    Socket(bool),
    /// A beat came back: what was stale may be fresh, what was held may be lost.
    Beaten,
    /// Time passed.
    Tick,
    /// Take no new work.
    Stop,
    /// End at once.
    Abandon,
}

/// What an inspection found.
pub(crate) struct Inspected {
    pub(crate) session: Session,
    pub(crate) ready: Arc<Ready>,
    pub(crate) stats: SystemStats,
}
