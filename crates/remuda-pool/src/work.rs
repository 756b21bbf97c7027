//! What is to be computed, and why it was not.

use std::any::Any;
use std::sync::Arc;

use uuid::Uuid;

/// Something that is given back when the last of its handles is dropped, such as a charge for memory.
pub type Kept = Arc<dyn Any + Send + Sync>;

/// A computation: what it is called, whose it is, and how large what it works on is.
#[derive(Debug, Clone)]
pub struct Work {
    pub(crate) what: &'static str,
    pub(crate) tenant: String,
    pub(crate) task: Option<Uuid>,
    pub(crate) bytes: usize,
    pub(crate) patient: bool,
    pub(crate) kept: Option<Kept>,
}

impl Work {
    /// Work on this many bytes. `what` is for people: "checking a graph".
    pub fn new(what: &'static str, tenant: impl Into<String>, bytes: usize) -> Self {
        Self { what, tenant: tenant.into(), task: None, bytes, patient: false, kept: None }
    }

    /// The same, on another number of bytes.
    #[must_use]
    pub fn on(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// How many bytes it works on.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// It works on the graph of a stored task: if the process dies in the middle, that is remembered of the task.
    #[must_use]
    pub fn of_task(mut self, task: Uuid) -> Self {
        self.task = Some(task);
        self
    }

    /// It waits instead of being refused: for callers whose number is bounded elsewhere, such as the holders of leases.
    /// It is refused only while every thread that its tenant may have is stuck.
    #[must_use]
    pub fn patient(mut self) -> Self {
        self.patient = true;
        self
    }

    /// Keeps this until the computation has really ended. Its caller may leave long before: what it was charged for is still
    /// in memory then.
    #[must_use]
    pub fn holding(mut self, kept: Kept) -> Self {
        self.kept = Some(kept);
        self
    }
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// Too much waits already.
    #[error("too much work waits already")]
    Busy,
    /// Too much of this tenant's work waits already, or does not come to an end; others still have room.
    #[error("too much work of this tenant waits already")]
    Share,
    /// It ran for longer than anything may, and still does. Nobody waits for it any more.
    #[error("it took too long")]
    Stalled,
    /// It panicked.
    #[error("it panicked: {0}")]
    Panicked(String),
    /// The pool has been closed.
    #[error("the process is stopping")]
    Closed,
}
