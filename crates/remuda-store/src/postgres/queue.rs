//! What waits to be written: commands, and claims that wait for a task.
//!
//! Callers put things in and wait for the answer; the batch workers take out everything that is there. So the batch
//! grows with the load by itself, and a lone caller never waits for company.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use remuda_core::transition::Ending;
use remuda_core::{Claim, Fence, LaneId, LeaseRef, NewTask, OwnerId, Requirements, TaskId, WorkerId};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::fault::silent;
use super::lanes::Lanes;
use crate::turns;
use crate::{ClaimRequest, EndReply, Error, Result, Submitted};

/// The largest batch of commands.
const BATCH: usize = 256;
/// The most claims that one batch looks for.
const CLAIMS: usize = 64;
/// More commands than this do not wait: the database does not keep up, or is away.
const WAITING: usize = 8192;

/// What a caller wants to be written.
#[derive(Debug)]
pub(super) enum Work {
    Submit(Box<NewTask>),
    End(OwnerId, LeaseRef, Box<Ending>),
    GiveBack(OwnerId, LeaseRef, Option<Requirements>),
}

impl Work {
    /// About how many bytes are to be written.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Submit(new) => turns::size_of_input(&new.input),
            Self::End(_, _, ending) => ending.result().map_or(0, turns::size_of_result),
            Self::GiveBack(..) => 0,
        }
    }
}

/// What it gets.
#[derive(Debug)]
pub(super) enum Answer {
    Submitted(Box<Submitted>),
    Ended(EndReply),
}

/// Work, and who waits for it. Without anybody it is done all the same.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) work: Work,
    pub(super) reply: Option<oneshot::Sender<Result<Answer>>>,
}

/// A claim that waits for a task.
#[derive(Debug)]
pub(super) struct Parked {
    id: u64,
    pub(super) request: Arc<ClaimRequest>,
    reply: oneshot::Sender<Result<Option<Delivery>>>,
    deadline: Instant,
    /// Something may have become ready for it since it was last looked at.
    due: bool,
    /// It was looked at.
    looked: bool,
    /// The lease that should be given back for it.
    pub(super) marked: Option<TaskId>,
    /// How many of its lanes, from the first one on, had nothing for it when it was last looked at.
    pub(super) skip: usize,
}

/// For whom a claim waits.
type Place<'a> = (&'a WorkerId, OwnerId, Fence, bool);

impl Parked {
    fn place(&self) -> Place<'_> {
        let ClaimRequest { worker, owner, worker_fence, ahead, .. } = &*self.request;
        (worker, *owner, *worker_fence, *ahead)
    }

    /// Whether it will go on waiting when there is nothing for it.
    pub(super) fn stays(&self) -> bool {
        self.deadline > Instant::now()
    }

    /// Hands over a task.
    pub(super) fn serve(self, claim: Claim, queue: &Arc<Queue>) {
        let delivery = Delivery { claim: Some(claim), queue: Arc::downgrade(queue) };
        // If nobody takes it, dropping it gives the task back.
        let _ = self.reply.send(Ok(Some(delivery)));
    }

    /// Says that there is nothing.
    fn nothing(self) {
        let _ = self.reply.send(Ok(None));
    }

    /// Says that there will be none.
    pub(super) fn refuse(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }
}

/// A claimed task on its way to the caller. Dropped on the way, it goes back to the queue.
#[derive(Debug)]
pub(super) struct Delivery {
    claim: Option<Claim>,
    queue: Weak<Queue>,
}

impl Delivery {
    /// It arrived.
    pub(super) fn accept(mut self) -> Option<Claim> {
        self.claim.take()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let (Some(claim), Some(queue)) = (self.claim.take(), self.queue.upgrade()) {
            tracing::debug!(task = %claim.task.id, "gives back a task whose claimer is gone");
            queue.give_back(claim.lease.owner, claim.lease.reference());
        }
    }
}

/// What a batch worker took out.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) commands: Vec<Command>,
    pub(super) claims: Vec<Parked>,
    /// How often something had become ready when it was taken.
    tide: u64,
}

#[derive(Debug, Default)]
struct State {
    commands: VecDeque<Command>,
    claims: Vec<Parked>,
    next_id: u64,
    tide: u64,
    closed: bool,
}

/// Commands and claims that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Adds work; the answer comes through the receiver.
    pub(super) fn push(&self, work: Work) -> Result<oneshot::Receiver<Result<Answer>>> {
        let (reply, answer) = oneshot::channel();
        let mut state = self.state();
        if state.closed {
            return Err(Error::Closed);
        }
        if state.commands.len() >= WAITING {
            return Err(silent("too many requests wait for the database"));
        }
        state.commands.push_back(Command { work, reply: Some(reply) });
        drop(state);
        self.wake.notify_one();
        Ok(answer)
    }

    /// Gives a task back for a claimer that is gone. Done also while closing.
    fn give_back(&self, owner: OwnerId, lease: LeaseRef) {
        self.state().commands.push_back(Command { work: Work::GiveBack(owner, lease, None), reply: None });
        self.wake.notify_one();
    }

    /// Work that must wait for the work before it.
    pub(super) fn push_again(&self, commands: Vec<Command>) {
        if commands.is_empty() {
            return;
        }
        let mut state = self.state();
        for command in commands.into_iter().rev() {
            state.commands.push_front(command);
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Adds a claim. It is taken out again when the ticket is dropped.
    pub(super) fn park(self: &Arc<Self>, request: ClaimRequest) -> Result<Ticket> {
        let (reply, answer) = oneshot::channel();
        let mut state = self.state();
        if state.closed {
            return Err(Error::Closed);
        }
        state.next_id += 1;
        let id = state.next_id;
        let deadline = Instant::now() + request.wait;
        let request = Arc::new(request);
        let (due, looked, marked, skip) = (true, false, None, 0);
        let new = Parked { id, request, reply, deadline, due, looked, marked, skip };
        // Whoever asks again does not wait for the answer before.
        let before = state.claims.extract_if(.., |parked| parked.place() == new.place());
        before.for_each(Parked::nothing);
        state.claims.push(new);
        drop(state);
        self.wake.notify_one();
        Ok(Ticket { id, queue: Arc::clone(self), answer })
    }

    /// Something became ready in these lanes.
    pub(super) fn ready(&self, ready: &BTreeSet<LaneId>, lanes: &Lanes) {
        let mut state = self.state();
        state.tide += 1;
        let mut any = false;
        for parked in &mut state.claims {
            if !parked.due && lanes.any_fits(ready, &parked.request.capabilities) {
                parked.due = true;
                any = true;
            }
        }
        drop(state);
        if any {
            self.wake.notify_one();
        }
    }

    /// Nobody said anything for a while: everybody looks for themselves.
    pub(super) fn look_all(&self) {
        let mut state = self.state();
        state.tide += 1;
        let any = !state.claims.is_empty();
        for parked in &mut state.claims {
            parked.due = true;
        }
        drop(state);
        if any {
            self.wake.notify_one();
        }
    }

    /// Takes the next batch, waiting for one. `None` when the queue was closed and is empty.
    pub(super) async fn next(&self) -> Option<Batch> {
        loop {
            // Registered before looking, so that nothing that comes in between is missed.
            let wake = self.wake.notified();
            {
                let mut state = self.state();
                if let Some(batch) = state.take() {
                    let more = !state.commands.is_empty() || state.claims.iter().any(|parked| parked.due);
                    drop(state);
                    if more {
                        self.wake.notify_one();
                    }
                    return Some(batch);
                }
                if state.closed {
                    drop(state);
                    self.wake.notify_one();
                    return None;
                }
            }
            wake.await;
        }
    }

    /// Claims for which there was nothing wait on, unless their time is over.
    pub(super) fn put_back(&self, claims: Vec<Parked>, tide: u64) {
        let mut state = self.state();
        let mut due = false;
        for mut parked in claims {
            if parked.reply.is_closed() {
                continue;
            }
            if state.closed || !parked.stays() {
                parked.nothing();
                continue;
            }
            parked.looked = true;
            parked.due = state.tide != tide;
            due |= parked.due;
            state.claims.push(parked);
        }
        state.claims.sort_by_key(|parked| parked.id);
        state.supersede();
        drop(state);
        if due {
            self.wake.notify_one();
        }
    }

    /// Takes nothing more; claims that wait get nothing.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        for parked in std::mem::take(&mut state.claims) {
            parked.nothing();
        }
        drop(state);
        self.wake.notify_one();
    }
}

impl Batch {
    /// The tide at which it was taken, for [`Queue::put_back`].
    pub(super) fn tide(&self) -> u64 {
        self.tide
    }
}

impl State {
    /// Answers the claims that a newer one of the same worker and kind took the place of while they were looked at.
    fn supersede(&mut self) {
        let mut newest: HashSet<Place<'_>> = HashSet::with_capacity(self.claims.len());
        let keep: Vec<bool> = self.claims.iter().rev().map(|parked| newest.insert(parked.place())).collect();
        let mut keep = keep.into_iter().rev();
        self.claims.extract_if(.., |_| !keep.next().unwrap_or(true)).for_each(Parked::nothing);
    }

    fn take(&mut self) -> Option<Batch> {
        let mut commands = Vec::new();
        while commands.len() < BATCH
            && let Some(command) = self.commands.pop_front()
        {
            // A caller that is gone does not want it any more; it was told nothing.
            if command.reply.as_ref().is_some_and(|reply| reply.is_closed()) {
                continue;
            }
            let large = command.work.size() > turns::SHORT;
            if large && !commands.is_empty() {
                // Nobody else waits for it.
                self.commands.push_front(command);
                break;
            }
            commands.push(command);
            if large {
                break;
            }
        }
        let claims = self.take_claims(&commands);
        (!commands.is_empty() || !claims.is_empty()).then_some(Batch { commands, claims, tide: self.tide })
    }

    /// Claims that must be looked at, and those that the new tasks of the batch could serve. Idle workers first.
    fn take_claims(&mut self, commands: &[Command]) -> Vec<Parked> {
        if self.claims.is_empty() {
            return Vec::new();
        }
        let submitted: Vec<&Requirements> = commands
            .iter()
            .filter_map(|command| match &command.work {
                Work::Submit(new) => Some(&new.input.requires),
                _ => None,
            })
            .collect();
        let mut fresh = submitted.len();
        let mut chosen = BTreeSet::new();
        for ahead in [false, true] {
            for parked in self.claims.iter().filter(|parked| parked.request.ahead == ahead) {
                if chosen.len() >= CLAIMS {
                    break;
                }
                let could = fresh > 0
                    && submitted.iter().any(|requires| requires.satisfied_by(&parked.request.capabilities));
                if parked.due || could {
                    fresh = fresh.saturating_sub(usize::from(!parked.due));
                    chosen.insert(parked.id);
                }
            }
        }
        if chosen.is_empty() {
            return Vec::new();
        }
        let (taken, left) =
            std::mem::take(&mut self.claims).into_iter().partition(|parked| chosen.contains(&parked.id));
        self.claims = left;
        taken
    }
}

/// A claim's place in the queue.
#[derive(Debug)]
pub(super) struct Ticket {
    id: u64,
    queue: Arc<Queue>,
    pub(super) answer: oneshot::Receiver<Result<Option<Delivery>>>,
}

impl Ticket {
    /// Stops waiting, if there was a look and none is under way.
    pub(super) fn withdraw(&self) -> bool {
        let mut state = self.queue.state();
        let before = state.claims.len();
        state.claims.retain(|parked| parked.id != self.id || !parked.looked);
        state.claims.len() < before
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.queue.state().claims.retain(|parked| parked.id != self.id);
    }
}
