//! Claims: those that wait, and who gets what.
//!
//! Every claim is put here first. At the end of each transaction all that wait are served from what is ready then,
//! idle workers before busy ones; who got nothing stays until its time is over.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use remuda_core::schedule::{self, Ahead, Candidate, Want};
use remuda_core::transition::{self, Claimer};
use remuda_core::{Claim, Fence, LaneId, Lease, LeaseRef, OwnerId, Phase, Task, TaskId, TaskInput, WorkerId};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::batch::{Batch, Was};
use super::command::Command;
use super::fault::{Outcome, corrupt};
use super::lanes;
use super::readers::Readers;
use super::rows::{Numbered, RawInput};
use super::state::{Held, State};
use crate::windows::{LOOKED_INTO, shares};
use crate::{Change, ClaimRequest, Error, Keyring, Result};

/// Leases that were given to callers who were gone by then.
#[derive(Debug)]
pub(super) struct Orphans {
    leases: Mutex<Vec<LeaseRef>>,
    writer: mpsc::WeakSender<Command>,
}

impl Orphans {
    pub(super) fn new(writer: mpsc::WeakSender<Command>) -> Self {
        Self { leases: Mutex::default(), writer }
    }

    /// Those that are to be given back.
    pub(super) fn take(&self) -> Vec<LeaseRef> {
        std::mem::take(&mut *self.leases.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// They could not be given back yet.
    pub(super) fn put_back(&self, leases: Vec<LeaseRef>) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).extend(leases);
    }

    fn add(&self, lease: LeaseRef) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
        if let Some(writer) = self.writer.upgrade() {
            // With a full channel the writer is about to look anyway.
            let _busy = writer.try_send(Command::Nudge);
        }
    }
}

/// A claim on its way to its caller. If it does not arrive, it goes back.
#[derive(Debug)]
pub(super) struct Ticket {
    claim: Option<Box<RawClaim>>,
    orphans: Arc<Orphans>,
}

/// A claim with its input as it is stored.
#[derive(Debug)]
pub(super) struct RawClaim {
    task: Task,
    /// Until it is read.
    input: Option<RawInput>,
    lease: Lease,
    adopted: bool,
}

impl RawClaim {
    pub(super) fn adopted(task: Task, input: RawInput, lease: Lease) -> Self {
        Self { task, input: Some(input), lease, adopted: true }
    }

    /// Puts the input together and reads it. That takes a while if it is long, and the writer has better things to do.
    pub(super) async fn read(&mut self, readers: &Readers, secrets: &Keyring) -> Result<TaskInput> {
        let (task, mut input) = (self.task.id, self.input.take().ok_or(Error::Closed)?);
        if input.is_in_pieces() {
            input = readers.read(move |db| input.fill(db)).await?;
        }
        let size = input.size();
        let read = move |secrets: &Keyring| -> Result<TaskInput> {
            let mut input = input.parse()?;
            secrets.open_task(task, &mut input);
            Ok(input)
        };
        secrets.beside(size, read).await?
    }

    pub(super) fn with(self, input: TaskInput) -> Claim {
        let Self { task, lease, adopted, .. } = self;
        Claim { task, input, lease, adopted }
    }
}

impl Ticket {
    /// It arrived. Whoever does not wait until its input is read has not got it.
    pub(super) async fn accept(mut self, readers: &Readers, secrets: &Keyring) -> Result<Claim> {
        let input = self.claim.as_mut().ok_or(Error::Closed)?.read(readers, secrets).await?;
        let claim = self.claim.take().ok_or(Error::Closed)?;
        Ok(claim.with(input))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(claim) = &self.claim {
            self.orphans.add(claim.lease.reference());
        }
    }
}

/// How a claim is answered.
pub(super) type ClaimReply = oneshot::Sender<Result<Option<Ticket>>>;

/// A claim that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    /// By which its caller says that it does not wait any more.
    pub(super) id: u64,
    pub(super) request: ClaimRequest,
    pub(super) reply: ClaimReply,
    /// How many of its lanes, from the first one on, had only tasks that avoid its worker when it was last served.
    skip: usize,
}

impl Waiting {
    pub(super) fn new(id: u64, request: ClaimRequest, reply: ClaimReply) -> Self {
        Self { id, request, reply, skip: 0 }
    }

    fn want(&self, lanes: BTreeSet<LaneId>) -> Want {
        let ClaimRequest { worker, loaded, ahead, .. } = &self.request;
        Want { worker: worker.clone(), lanes, loaded: loaded.clone(), ahead: *ahead }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    /// For whom it waits.
    fn place(&self) -> (&WorkerId, OwnerId, Fence, bool) {
        let ClaimRequest { worker, owner, worker_fence, ahead, .. } = &self.request;
        (worker, *owner, *worker_fence, *ahead)
    }

    /// Whether the worker is still the caller's.
    pub(super) fn is_void(&self, state: &State) -> bool {
        !drives(state, &self.request.worker, self.request.owner, self.request.worker_fence)
    }

    /// Answers it, once the claim is durable.
    pub(super) fn answer(self, claim: Result<Option<RawClaim>>, orphans: &Arc<Orphans>) {
        let ticket = |claim| Ticket { claim: Some(Box::new(claim)), orphans: Arc::clone(orphans) };
        // Nobody there: what is in the ticket goes back when it is dropped.
        let _gone = self.reply.send(claim.map(|claim| claim.map(ticket)));
    }
}

/// Takes out the claims that a newer one of the same worker and kind took the place of. A worker that asks again does not wait
/// for the answer before, and what waits is bounded by the number of workers.
pub(super) fn superseded(waiting: &mut Vec<Waiting>) -> Vec<Waiting> {
    let mut newest = HashSet::with_capacity(waiting.len());
    let keep: Vec<bool> = waiting.iter().rev().map(|claim| newest.insert(claim.place())).collect();
    if newest.len() == waiting.len() {
        return Vec::new();
    }
    let mut keep = keep.into_iter().rev();
    waiting.extract_if(.., |_| !keep.next().unwrap_or(true)).collect()
}

fn drives(state: &State, worker: &WorkerId, owner: OwnerId, fence: Fence) -> bool {
    let driver = state.drivers.get(worker);
    driver.is_some_and(|driver| driver.held && driver.owner == owner && driver.fence == fence)
}

impl Batch<'_> {
    /// Only who holds a worker may act for it.
    pub(super) fn check_driver(&self, worker: &WorkerId, owner: OwnerId, fence: Fence) -> Outcome<()> {
        if drives(self.state, worker, owner, fence) { Ok(()) } else { Err(Error::Fenced.into()) }
    }

    /// Gives what is ready to those who wait. The answer has the place in `waiting` and the claim.
    pub(super) fn serve(&mut self, waiting: &mut [Waiting]) -> Outcome<Vec<(usize, RawClaim)>> {
        let there = |claim: &Waiting| !claim.is_gone() && !claim.is_void(self.state);
        let there: Vec<usize> =
            waiting.iter().enumerate().filter(|(_, claim)| there(claim)).map(|(place, _)| place).collect();
        let (mut places, mut turns) = (Vec::new(), Vec::new());
        for place in there {
            let Some(claim) = waiting.get(place) else { continue };
            let lanes = self.state.lanes.next(self.db, &claim.request.capabilities, 0, LOOKED_INTO)?;
            if !lanes.is_empty() {
                places.push(place);
                turns.push(lanes);
            }
        }
        if turns.is_empty() {
            return Ok(Vec::new());
        }
        let depths = shares(&turns);
        let window = self.window(&depths)?;
        let want = |(place, lanes): (&usize, &Vec<LaneId>)| {
            let seen = lanes.iter().filter(|lane| depths.contains_key(*lane)).cloned().collect();
            Some(waiting.get(*place)?.want(seen))
        };
        let wants: Vec<Want> = places.iter().zip(&turns).filter_map(want).collect();
        let mut given: Vec<Option<TaskId>> = vec![None; wants.len()];
        if !window.candidates.is_empty() {
            for (slot, index) in given.iter_mut().zip(schedule::assign(&window.candidates, &wants, self.now))
            {
                *slot = index.and_then(|index| window.candidates.get(index)).map(|candidate| candidate.id);
            }
        }
        let mut served = Vec::new();
        let mut all: HashSet<TaskId> = given.iter().flatten().copied().collect();
        for (((want, task), lanes), place) in wants.into_iter().zip(given).zip(&turns).zip(places) {
            let Some(claim) = waiting.get_mut(place) else { continue };
            let cut =
                || want.lanes.len() < lanes.len() || want.lanes.iter().any(|lane| window.cut.contains(lane));
            let task = match task {
                Some(task) => Some(task),
                // Everything it saw avoids it or went to others: look further back.
                None if lanes.len() >= LOOKED_INTO || cut() => self.deeper(claim, &all)?,
                None => None,
            };
            if let Some(task) = task {
                claim.skip = 0;
                all.insert(task);
                served.push((place, self.claim(task, &claim.request)?));
            }
        }
        Ok(served)
    }

    /// What a worker gets for whom there was nothing in the window, without what others get in this round. Where all the
    /// lanes that are looked into have nothing for it, the next ones have their turn the next time.
    fn deeper(&mut self, claim: &mut Waiting, given: &HashSet<TaskId>) -> Outcome<Option<TaskId>> {
        let offer = &claim.request.capabilities;
        let lanes = self.state.lanes.next(self.db, offer, claim.skip, LOOKED_INTO)?;
        claim.skip = if lanes.len() < LOOKED_INTO { 0 } else { claim.skip + LOOKED_INTO };
        let mut candidates = Vec::new();
        for lane in &lanes {
            candidates.extend(self.window_for(lane, &claim.request.worker, given.len())?);
        }
        candidates.retain(|candidate| !given.contains(&candidate.id));
        candidates.sort_by(|a, b| a.order().cmp(&b.order()));
        let want = claim.want(lanes.into_iter().collect());
        let chosen = schedule::assign(&candidates, std::slice::from_ref(&want), self.now);
        Ok(chosen.into_iter().flatten().next().and_then(|index| candidates.get(index)).map(|found| found.id))
    }

    fn claim(&mut self, id: TaskId, request: &ClaimRequest) -> Outcome<RawClaim> {
        let found =
            self.load_row(id)?.ok_or_else(|| corrupt("the queue", format!("there is no task {id}")))?;
        let Numbered { no, mut task } = found;
        let input = self.input(no)?;
        let was = Was::from(&task);
        let by = Claimer {
            owner: request.owner,
            worker: request.worker.clone(),
            gateway: request.gateway.clone(),
            ahead: request.ahead,
        };
        let (lease, attempt, event) =
            transition::claim(&mut task, self.now, self.settings.policy(), &by, Uuid::new_v4())
                .map_err(|error| corrupt("the queue", error))?;
        self.update_task(&was, &task)?;
        self.insert_lease(no, &lease, &attempt)?;
        self.happened(no, &task, &event)?;
        self.changed(Change::of(&task));
        self.state.lanes.came(&task.lane, task.rank);
        let held = Held { no, task: task.clone(), lease: lease.clone(), started_at: attempt.started_at };
        self.state.running.insert(id, held);
        Ok(RawClaim { task, input: Some(input), lease, adopted: false })
    }

    /// What a task runs, as it came.
    pub(super) fn input(&self, no: i64) -> Outcome<RawInput> {
        let sql = "SELECT placements, workflow, extra, text, lane, \
                   (SELECT sealed FROM secret WHERE secret.no = input_row.no) FROM input_row WHERE no = ?";
        let mut statement = self.db.prepare_cached(sql)?;
        let mut found = statement.query((no,))?;
        let row = found.next()?.ok_or_else(|| corrupt("a task", "it has no input"))?;
        let lane = LaneId::from_stored(row.get(4)?);
        let requires = match self.state.lanes.get(&lane) {
            Some(lane) => Arc::clone(&lane.requires),
            // It waits for more than what it came with by now, and nothing else came with that.
            None => match lanes::stored(self.db, &lane)? {
                Some((requires, _)) => Arc::new(requires),
                None => return Err(corrupt("a task", "it has no lane")),
            },
        };
        let mut input = RawInput::read(row, requires)?;
        input.envelope = row.get(5)?;
        Ok(input)
    }

    /// Asks for tasks that wait in a busy worker's own queue, one for every idle worker that got nothing.
    pub(super) fn want_back(&mut self, waiting: &[Waiting], served: &[(usize, RawClaim)]) -> Outcome<()> {
        let got = |place: usize| served.iter().any(|(served, _)| *served == place);
        // Who does not wait would not be there any more when something came back.
        let stays = |claim: &Waiting| !claim.request.wait.is_zero() && !claim.is_gone();
        let idle = |(place, claim): &(usize, &Waiting)| !claim.request.ahead && stays(claim) && !got(*place);
        let idle: Vec<&Waiting> = waiting.iter().enumerate().filter(idle).map(|(_, claim)| claim).collect();
        if idle.is_empty() {
            return Ok(());
        }
        let waits = |held: &&Held| held.lease.phase == Phase::Ahead;
        let waits = self.state.running.values().filter(waits).map(|held| self.ahead(held));
        let mut ahead: Vec<Ahead> = waits.collect();
        if ahead.is_empty() {
            return Ok(());
        }
        ahead.sort_by(|a, b| a.candidate.order().cmp(&b.candidate.order()));
        let mut expected = BTreeSet::new();
        for claim in idle {
            let offer = &claim.request.capabilities;
            let lanes = ahead.iter().map(|waits| &waits.candidate.lane);
            let lanes = lanes.filter(|lane| self.state.lanes.fits(offer, lane)).cloned().collect();
            let Some(found) = schedule::want_back(&ahead, &claim.want(lanes), &expected) else { continue };
            let Some(waits) = ahead.get(found) else { continue };
            expected.insert(waits.candidate.id);
            if let Some(held) = self.state.running.get_mut(&waits.candidate.id)
                && !held.lease.wanted
            {
                held.lease.wanted = true;
                let (no, lease) = (held.no, held.lease.clone());
                self.update_lease(no, &lease)?;
                self.effects.news = true;
            }
        }
        Ok(())
    }

    /// A running task that waits in its worker's own queue.
    fn ahead(&self, held: &Held) -> Ahead {
        let task = &held.task;
        Ahead {
            candidate: Candidate {
                id: task.id,
                lane: task.lane.clone(),
                rank: task.rank,
                priority: task.priority,
                affinity: task.affinity,
                avoid: schedule::avoids(task.avoid_worker.clone(), task.avoid_until, self.now),
                since: task.run_at,
            },
            worker: held.lease.worker.clone(),
            wanted: held.lease.wanted,
            cancelled: task.cancel_at.is_some(),
        }
    }
}
