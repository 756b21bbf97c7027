//! How tasks end.

use std::collections::BTreeSet;
use std::sync::Arc;

use remuda_core::transition::Ending;
use remuda_core::{Failure, FailureClass, Lease, LeaseRef, OwnerId, Requirements, TaskId, Timestamp};
use tokio::time::Instant;
use uuid::Uuid;

use super::{Cancel, Deliveries, LET_GO, LET_GO_FOR, REPORTED, State, called_off};
use crate::source::foreign::record::Record;
use crate::source::foreign::{Delivery, DeliveryEnding, Withdrawn};

/// What the end of an attempt means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source::foreign) enum Finished {
    /// The queue is to hear it.
    Report,
    /// Nobody is to hear it, and nothing is left of the task.
    Forget,
    /// The same, and its files are to go as well.
    Discard,
    /// It ended well after its time, and is remembered for the delivery that is to come.
    Left,
    /// It is begun anew.
    Again,
    /// This was said before.
    Repeated,
    /// The lease is not known.
    Fenced,
}

/// What is left to do after an end was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source::foreign) enum Settled {
    /// Nothing is left of the task.
    Gone,
    /// A newer delivery is to be told the same.
    Newer,
    /// The task was begun anew, because it was delivered again meanwhile.
    Withdrawn,
}

/// What the word of the queue means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source::foreign) enum Verdict {
    /// Nothing.
    Ignore,
    /// Its holder is to be told.
    Tell,
    /// The task is gone.
    Gone,
    /// A slot is free; the queue is to be asked again later.
    Freed,
}

impl Deliveries {
    /// The queue says of the delivery with this number that it is over.
    pub(in crate::source::foreign) fn withdraw(
        &mut self,
        task: TaskId,
        attempt: i32,
        over: &Withdrawn,
        now: Timestamp,
    ) -> Verdict {
        let Some(entry) = self.tasks.get_mut(&task).filter(|entry| entry.delivery.attempt == attempt) else {
            return Verdict::Ignore;
        };
        match (&entry.state, over) {
            // Whoever says how it ended finds out.
            (State::Ended { .. }, _) => Verdict::Ignore,
            (State::Bound(_), Withdrawn::Superseded) => {
                entry.superseded = true;
                Verdict::Freed
            }
            (State::Bound(_), Withdrawn::Unwanted(reason) | Withdrawn::Done(reason)) => {
                let discard = matches!(over, Withdrawn::Unwanted(_));
                let reason = reason.clone();
                entry.cancel = Some(Cancel { reason, unwanted: true, discard, renewed: false });
                Verdict::Tell
            }
            (State::Bound(_), Withdrawn::Elsewhere) => {
                let entry = &self.tasks[&task];
                if let Some(bound) = entry.bound() {
                    let mut lease = self.lease(task, entry, bound, now);
                    lease.owner = OwnerId(Uuid::nil());
                    lease.until = now.checked_add(LET_GO_FOR).unwrap_or(Timestamp::MAX);
                    self.restore_let_go([lease]);
                }
                self.tasks.remove(&task);
                Verdict::Gone
            }
            // Nothing of it is anywhere.
            (State::Waiting | State::Looking, _) => {
                self.tasks.remove(&task);
                Verdict::Gone
            }
        }
    }

    /// A lease on a render of another queue that goes on at a worker of ours. It counts as let go of.
    pub(in crate::source::foreign) fn spare(&mut self, record: &Record) -> Option<Lease> {
        let worker = record.worker.clone().filter(|_| record.ending.is_none())?;
        Some(Lease {
            task: record.task,
            fence: self.next_fence(),
            attempt: record.attempt,
            owner: OwnerId(Uuid::nil()),
            worker,
            prompt_id: record.delivery.prompt(),
            until: Timestamp::MAX,
            phase: record.phase,
            progress: 0.0,
            rendering_since: record.rendering_since,
            gateway: None,
            wanted: false,
        })
    }

    /// Renders that were let go of, by this process or one before it.
    pub(in crate::source::foreign) fn restore_let_go(&mut self, leases: impl IntoIterator<Item = Lease>) {
        for lease in leases {
            if self.let_go.len() >= LET_GO {
                self.let_go.pop_front();
            }
            self.let_go.push_back(lease);
        }
    }

    /// A render that was let go of has ended.
    pub(in crate::source::foreign) fn release(&mut self, lease: &Lease) {
        self.let_go.retain(|other| other.reference() != lease.reference());
    }

    /// Renders that were let go of, and may still be under way.
    pub(in crate::source::foreign) fn let_go(&mut self, now: Timestamp) -> Vec<Lease> {
        self.let_go.retain(|lease| lease.until > now);
        self.let_go.iter().cloned().collect()
    }

    fn holds(&self, lease: LeaseRef) -> Option<Finished> {
        match self.tasks.get(&lease.task).map(|entry| &entry.state) {
            Some(State::Bound(bound)) if bound.fence == lease.fence => None,
            Some(State::Ended { lease: Some(ended), .. }) if *ended == lease => Some(Finished::Repeated),
            _ if self.reported.contains(&lease) => Some(Finished::Repeated),
            _ => Some(Finished::Fenced),
        }
    }

    /// Whether nobody wants the files of a lease. Otherwise another process may have delivered them: they have the same names
    /// everywhere.
    pub(in crate::source::foreign) fn may_discard(&self, lease: LeaseRef) -> bool {
        let cancel = self.tasks.get(&lease.task).and_then(|entry| entry.cancel.as_ref());
        self.holds(lease).is_none() && cancel.is_some_and(|cancel| cancel.discard && !cancel.renewed)
    }

    fn remember_report(&mut self, lease: LeaseRef) {
        if self.reported.len() >= REPORTED {
            self.reported.pop_front();
        }
        self.reported.push_back(lease);
    }

    /// An attempt ended.
    pub(in crate::source::foreign) fn end(
        &mut self,
        lease: LeaseRef,
        ending: Ending,
        now: Instant,
    ) -> Finished {
        if let Some(known) = self.holds(lease) {
            return known;
        }
        let Some(mut entry) = self.tasks.remove(&lease.task) else { return Finished::Fenced };
        self.remember_report(lease);
        let cancel = entry.cancel.take();
        let well = matches!(ending, Ending::Completed { .. });
        let renewed = cancel.as_ref().is_some_and(|cancel| cancel.renewed);
        let unwanted = cancel.as_ref().is_some_and(|cancel| cancel.unwanted && !cancel.renewed);
        let discard = cancel.as_ref().is_some_and(|cancel| cancel.discard);
        // Its prompt was stopped, and then it was delivered again.
        if renewed && !well && !self.closing {
            entry.use_second_id();
            entry.wait(now);
            self.tasks.insert(lease.task, entry);
            return Finished::Again;
        }
        let ending = match ending {
            Ending::Cancelled => {
                called_off(cancel.map_or("it was cancelled".to_owned(), |cancel| cancel.reason))
            }
            ending => Arc::new(DeliveryEnding::Ended(ending)),
        };
        if unwanted {
            return if discard { Finished::Discard } else { Finished::Forget };
        }
        if entry.superseded {
            // The delivery that will come gets it.
            self.remember(lease.task, &entry, &ending, now);
            return if well { Finished::Left } else { Finished::Forget };
        }
        entry.state = State::Ended { ending, lease: Some(lease), said: false };
        self.tasks.insert(lease.task, entry);
        Finished::Report
    }

    /// A runner gives a task back that ComfyUI has not begun.
    pub(in crate::source::foreign) fn give_back(
        &mut self,
        lease: LeaseRef,
        learnt: Option<&Requirements>,
        now: Instant,
    ) -> Finished {
        if let Some(known) = self.holds(lease) {
            return known;
        }
        let Some(mut entry) = self.tasks.remove(&lease.task) else { return Finished::Fenced };
        self.remember_report(lease);
        let worker = entry.bound().map(|bound| bound.worker.clone());
        let cancel = entry.cancel.take();
        if cancel.as_ref().is_some_and(|cancel| cancel.unwanted && !cancel.renewed) || entry.superseded {
            return Finished::Forget;
        }
        let ending = match (learnt, cancel) {
            (_, Some(cancel)) if !cancel.renewed => Some(called_off(cancel.reason)),
            _ if self.closing => Some(called_off("the worker is stopping")),
            (Some(lacks), _) => {
                entry.avoid.extend(worker);
                let others: BTreeSet<_> = self.workers.difference(&entry.avoid).collect();
                let message = format!("no ComfyUI has what the workflow needs: {lacks}");
                let failure = Failure::new(FailureClass::Validation, message);
                let failed = DeliveryEnding::Ended(Ending::Failed { failure, partial: None });
                others.is_empty().then(|| Arc::new(failed))
            }
            (None, _) => {
                let another = self.waiters.values().any(|waiter| {
                    Some(&waiter.worker) != worker.as_ref()
                        && !entry.avoid.contains(&waiter.worker)
                        && !self.is_occupied(&waiter.worker)
                });
                let reason = "it was given back before ComfyUI began to work on it";
                (!another).then(|| called_off(reason))
            }
        };
        let finished = if ending.is_some() { Finished::Report } else { Finished::Again };
        match ending {
            Some(ending) => entry.state = State::Ended { ending, lease: Some(lease), said: false },
            None => entry.wait(now),
        }
        self.tasks.insert(lease.task, entry);
        finished
    }

    /// Stops asking. What no worker has is over.
    pub(in crate::source::foreign) fn close(&mut self, reason: &str) {
        self.closing = true;
        for entry in self.tasks.values_mut() {
            if matches!(entry.state, State::Waiting | State::Looking) {
                entry.state = State::Ended { ending: called_off(reason), lease: None, said: false };
            }
        }
    }

    /// Stops everything under way.
    pub(in crate::source::foreign) fn call_off(&mut self, reason: &str) {
        self.close(reason);
        for entry in self.tasks.values_mut() {
            if entry.bound().is_some() && entry.cancel.as_ref().is_none_or(|cancel| cancel.renewed) {
                let (reason, unwanted) = (reason.to_owned(), entry.superseded);
                entry.cancel = Some(Cancel { reason, unwanted, discard: false, renewed: false });
            }
        }
    }

    /// Whoever calls this first says how the task ended.
    pub(in crate::source::foreign) fn begin_to_say(&mut self, task: TaskId) -> bool {
        match self.tasks.get_mut(&task).map(|entry| &mut entry.state) {
            Some(State::Ended { said, .. }) => !std::mem::replace(said, true),
            _ => false,
        }
    }

    /// What is to be said of a task, to which delivery.
    pub(in crate::source::foreign) fn unsent(
        &self,
        task: TaskId,
    ) -> Option<(Arc<Delivery>, Arc<DeliveryEnding>)> {
        let entry = self.tasks.get(&task)?;
        match &entry.state {
            State::Ended { ending, .. } => Some((Arc::clone(&entry.delivery), Arc::clone(ending))),
            _ => None,
        }
    }

    /// It was said to the delivery with this number.
    pub(in crate::source::foreign) fn settle(&mut self, task: TaskId, attempt: i32, now: Instant) -> Settled {
        match self.tasks.get(&task).map(|entry| (&entry.state, entry.delivery.attempt)) {
            Some((State::Ended { ending, .. }, newest)) if newest == attempt => {
                let ending = Arc::clone(ending);
                if let Some(entry) = self.tasks.remove(&task) {
                    self.remember(task, &entry, &ending, now);
                }
                Settled::Gone
            }
            Some((State::Ended { .. }, _)) => Settled::Newer,
            _ => Settled::Withdrawn,
        }
    }
}
