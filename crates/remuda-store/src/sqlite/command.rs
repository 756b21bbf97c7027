//! What callers ask of the writer.

use std::fmt;
use std::sync::Arc;

use remuda_core::NewTask;
use tokio::sync::oneshot;

use super::batch::Batch;
use super::beats::Beat;
use super::claims::Waiting;
use super::fault::{Fault, Outcome};
use super::pieces::Laid;
use crate::turns::Turn;
use crate::{Error, Result, Submitted};

/// Everything that can wake the writer.
#[derive(Debug)]
pub(super) enum Command {
    /// Take a task in.
    Submit(Box<Submit>),
    /// Any other change that is answered when it is durable.
    Change(Box<dyn Work>),
    /// Give a task to a worker, now or when there is one.
    Claim(Waiting),
    /// That claim does not wait any more.
    ClaimOver(u64),
    /// Renew leases, and tell when there are news of them.
    Beat(Beat),
    /// That beat does not wait any more.
    BeatOver(u64),
    /// Look at what was left elsewhere.
    Nudge,
    /// The end.
    Close,
}

/// A submission and its answer.
#[derive(Debug)]
pub(super) struct Submit {
    pub(super) new: NewTask,
    /// What it counts as.
    pub(super) bytes: i64,
    /// Its graph and what came beside it, if they are long. Here, so that it is not left over before this is done.
    pub(super) laid: Option<Arc<Laid>>,
    /// That it is in line, if it is not short.
    pub(super) _turn: Turn,
    pub(super) done: Option<Result<Submitted>>,
    pub(super) reply: oneshot::Sender<Result<Submitted>>,
}

/// A change of the file that can be tried, and tried again when the transaction it was in failed for another's fault.
pub(super) trait Work: fmt::Debug + Send {
    /// Does it within a transaction. An error here is the database's.
    fn apply(&mut self, batch: &mut Batch<'_>) -> rusqlite::Result<()>;

    /// Answers after the commit, or after it failed.
    fn answer(self: Box<Self>, failed: Option<Error>);
}

/// A change as a function.
pub(super) struct Job<T, F> {
    work: F,
    done: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Job<T, F> {
    pub(super) fn new(work: F, reply: oneshot::Sender<Result<T>>) -> Self {
        Self { work, done: None, reply }
    }
}

impl<T, F> fmt::Debug for Job<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job")
    }
}

impl<T, F> Work for Job<T, F>
where
    T: Send,
    F: FnMut(&mut Batch<'_>) -> Outcome<T> + Send,
{
    fn apply(&mut self, batch: &mut Batch<'_>) -> rusqlite::Result<()> {
        self.done = Some(whole(batch, &mut self.work)?);
        Ok(())
    }

    fn answer(self: Box<Self>, failed: Option<Error>) {
        let Self { done, reply, .. } = *self;
        // A caller that is gone does not want to know.
        let _gone = reply.send(failed.map_or_else(|| done.unwrap_or(Err(Error::Closed)), Err));
    }
}

/// Does something wholly or not at all: whoever refuses must not have written before.
pub(super) fn whole<T>(
    batch: &mut Batch<'_>,
    work: impl FnOnce(&mut Batch<'_>) -> Outcome<T>,
) -> rusqlite::Result<Result<T>> {
    let before = batch.db.total_changes();
    match work(batch) {
        Ok(value) => Ok(Ok(value)),
        Err(Fault::Abort(error)) => Err(error),
        Err(Fault::Answer(error)) if batch.db.total_changes() == before => Ok(Err(error)),
        Err(Fault::Answer(error)) => Err(rusqlite::Error::ToSqlConversionFailure(Box::new(error))),
    }
}

/// The same error once more, for the next caller of a transaction that failed.
pub(super) fn again(error: &Error) -> Error {
    match error {
        Error::Full => Error::Full,
        Error::Closed => Error::Closed,
        Error::Unavailable { message, .. } => Error::Unavailable { message: message.clone(), source: None },
        other => Error::Corrupt(other.to_string()),
    }
}
