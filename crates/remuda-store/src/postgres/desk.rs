//! Deciding: what was read goes in, what is to be written comes out. Nothing is awaited here.

use std::collections::{BTreeSet, HashMap};

use rand::RngExt as _;
use remuda_core::admission::{self, Admission, Met};
use remuda_core::quota::Usage;
use remuda_core::schedule::{Ahead, Candidate, Want, assign, avoids, want_back};
use remuda_core::transition::{self, Claimer, Ending};
use remuda_core::{
    Claim, Lane, LaneId, LeaseRef, NewTask, OwnerId, PendingReason, Requirements, Standing, Status, Task,
    TaskId, Tenant, Timestamp,
};
use uuid::Uuid;

use super::fault::Fault;
use super::inner::Inner;
use super::load::Loaded;
use super::queue::{Answer, Command, Parked, Work};
use super::save::{Idem, Save};
use crate::{EndReply, Error, Result, Submitted};

/// What became of one command.
#[derive(Debug)]
pub(super) enum Outcome {
    Answer(Result<Answer>),
    /// It repeats another command of the same batch, and waits for that one to be written.
    Later,
}

/// What became of one claim.
#[derive(Debug)]
pub(super) enum Served {
    Claim(Box<Claim>),
    Nothing {
        /// The lease that was asked back for it.
        marked: Option<TaskId>,
    },
    Fenced,
}

impl Served {
    /// The claim that was given.
    pub(super) fn claim(&mut self) -> Option<&mut Claim> {
        match self {
            Self::Claim(claim) => Some(claim),
            Self::Nothing { .. } | Self::Fenced => None,
        }
    }
}

/// Submissions of this batch, to find repetitions within it.
#[derive(Default)]
pub(super) struct Seen<'a> {
    ids: BTreeSet<TaskId>,
    keys: BTreeSet<(&'a Tenant, &'a str)>,
    /// Lanes that tenants come into with this batch, and had no tasks in before.
    lanes: BTreeSet<(&'a Tenant, LaneId)>,
}

impl<'a> Seen<'a> {
    /// In how many lanes a tenant has tasks, and whether this is one of them. Batches under way at the same moment do not see
    /// each other, so that there may be a few more.
    fn lanes_of(&self, tenant: &Tenant, lane: &LaneId, loaded: &Loaded) -> (u64, bool) {
        let new = || self.lanes.iter().filter(|(of, _)| *of == tenant).map(|(_, lane)| lane);
        let in_lane = *lane == LaneId::any()
            || loaded.used.contains(&(tenant.clone(), lane.clone()))
            || new().any(|new| new == lane);
        let before = loaded.lane_counts.get(tenant).copied().unwrap_or(0);
        (before.saturating_add(new().count() as u64), in_lane)
    }

    /// A task is taken in.
    fn took(&mut self, new: &'a NewTask, lane: &LaneId, in_lane: bool) {
        self.ids.insert(new.id);
        self.keys.extend(new.idempotency.as_ref().map(|known| (&new.tenant, known.key.as_str())));
        if !in_lane {
            self.lanes.insert((&new.tenant, lane.clone()));
        }
    }
}

/// Which candidate each claim gets.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    tasks: Vec<Option<TaskId>>,
    fenced: Vec<bool>,
    /// Some claim that could be served got nothing.
    pub(super) unserved: bool,
    /// Some claim may have missed its turn, because of what avoids its worker.
    pub(super) hidden: bool,
}

impl Chosen {
    /// Whether an idle worker will go on waiting.
    pub(super) fn leaves_idle(&self, claims: &[Parked]) -> bool {
        let waits = |parked: &Parked| !parked.request.ahead && parked.stays();
        let left = claims.iter().zip(&self.tasks).zip(&self.fenced);
        left.into_iter().any(|((parked, task), fenced)| task.is_none() && !fenced && waits(parked))
    }
}

/// Where decisions are made.
pub(super) struct Desk<'a> {
    pub(super) inner: &'a Inner,
    pub(super) now: Timestamp,
    pub(super) save: Save,
    /// What completed tasks took, by their shapes.
    pub(super) measured: Vec<(i64, i64)>,
    /// What is known of tasks that are given back with more.
    pub(super) requires: HashMap<TaskId, Requirements>,
}

impl Desk<'_> {
    /// One command after the other; each sees what those before it did.
    pub(super) fn command<'c>(
        &mut self,
        command: &'c Command,
        loaded: &mut Loaded,
        seen: &mut Seen<'c>,
    ) -> Outcome {
        match &command.work {
            Work::Submit(new) => self.submit(new, loaded, seen),
            Work::End(owner, lease, ending) => {
                let ended = match reporter(*owner, *lease, loaded) {
                    Reporter::Holds(task) => Ok(self.end(task, ending)),
                    Reporter::Held(task) => {
                        let status = task.status;
                        let discarded = ending.result().is_some() && !loaded.left.contains(&lease.task);
                        Ok(EndReply::again(status, discarded))
                    }
                    Reporter::Fenced => Err(Error::Fenced),
                };
                Outcome::Answer(ended.map(Answer::Ended))
            }
            Work::GiveBack(owner, lease, learnt) => {
                let given = match reporter(*owner, *lease, loaded) {
                    Reporter::Holds(task) => Ok(self.give_back(task, learnt.as_ref())),
                    Reporter::Held(task) => Ok(EndReply::again(task.status, false)),
                    Reporter::Fenced => Err(Error::Fenced),
                };
                Outcome::Answer(given.map(Answer::Ended))
            }
        }
    }

    fn submit<'c>(&mut self, new: &'c NewTask, loaded: &mut Loaded, seen: &mut Seen<'c>) -> Outcome {
        let key = new.idempotency.as_ref().map(|idempotency| (&new.tenant, idempotency.key.as_str()));
        if seen.ids.contains(&new.id) || key.is_some_and(|key| seen.keys.contains(&key)) {
            return Outcome::Later;
        }
        let lane = new.input.requires.lane();
        let (lanes, in_lane) = seen.lanes_of(&new.tenant, &lane, loaded);
        let by_key = key.and_then(|(tenant, key)| loaded.idems.get(&(tenant.to_string(), key.to_owned())));
        let by_id = with_id(new.id, loaded);
        let met = Met {
            by_key: by_key.map(|(request, task)| (*request, task.id)),
            by_id: by_id.map(|task| &task.tenant),
            has: self.has(&new.tenant, loaded),
            lanes,
            in_lane,
        };
        let bytes = new.input.stored_bytes(new.metadata.as_ref());
        match admission::admit(new, bytes, &met, &self.inner.sessions.options().bounds()) {
            Ok(Admission::New) => seen.took(new, &lane, in_lane),
            Ok(Admission::Before(made)) => {
                let before =
                    by_key.map(|(_, task)| task).into_iter().chain(by_id).find(|task| task.id == made);
                let missing = || Error::Corrupt(format!("task {made} was made before and is not there"));
                let before = before.cloned().map(Submitted::Before).ok_or_else(missing);
                return Outcome::Answer(before.map(|before| Answer::Submitted(Box::new(before))));
            }
            Err(refusal) => return Outcome::Answer(Err(refusal.into())),
        }
        if !self.inner.lanes.knows(&lane) {
            let requires = new.input.requires.clone();
            self.save.new_lanes.insert(lane.clone(), Lane { id: lane.clone(), requires });
        }
        if loaded.new_tenants.contains(&new.tenant) {
            self.save.new_tenants.insert(new.tenant.clone());
        }
        let ledger = &self.inner.ledger;
        let first = loaded.heads.get(&lane).copied();
        let cost = ledger.cost(new.shape);
        let head = first.unwrap_or_else(|| ledger.v(&lane));
        let rank = ledger.enter(&new.tenant, head, new.priority, cost);
        let (task, event) = transition::submit(new, self.now, rank, cost);
        if task.reason == Some(PendingReason::Queued) {
            loaded.heads.insert(lane, first.map_or(rank, |first| first.min(rank)));
        }
        if let Some(idempotency) = &new.idempotency {
            let idempotency = idempotency.clone();
            self.save.idems.push(Idem {
                tenant: new.tenant.clone(),
                idempotency,
                task: new.id,
                at: self.now,
            });
        }
        self.save.submitted(task.clone(), new.input.clone(), &new.errands, event);
        Outcome::Answer(Ok(Answer::Submitted(Box::new(Submitted::New(task)))))
    }

    /// What a tenant has. Batches under way at the same moment do not see each other.
    fn has(&self, tenant: &Tenant, loaded: &Loaded) -> Usage {
        if self.inner.sessions.options().quota.is_none() {
            return Usage::default();
        }
        let read = loaded.usage.get(tenant).copied();
        let before = read.unwrap_or_else(|| self.inner.usages.known(tenant));
        let adds = self.save.adds(tenant);
        Usage { waiting: before.waiting + adds.waiting, bytes: before.bytes + adds.bytes }
    }

    fn end(&mut self, task: &mut Task, ending: &Ending) -> EndReply {
        let dice = rand::rng().random();
        let policy = &self.inner.sessions.options().policy;
        let ended = transition::end(task, self.now, policy, ending.clone(), dice);
        if let Some(ms) = ended.gpu_ms {
            self.measured.push((task.shape, ms));
        }
        let reply = EndReply { status: task.status, discarded: ended.discarded, repeated: false };
        self.save.ended(task, ended, self.now);
        reply
    }

    fn give_back(&mut self, task: &mut Task, learnt: Option<&Requirements>) -> EndReply {
        let requires = learnt.map(|learnt| {
            let known = self.requires.get(&task.id).cloned().unwrap_or_default();
            known.and(learnt)
        });
        let ended = transition::give_back(task, self.now, requires.as_ref());
        if let Some(requires) = requires
            && task.status == Status::Pending
        {
            self.save.new_lanes.insert(task.lane.clone(), Lane { id: task.lane.clone(), requires });
        }
        let reply = EndReply { status: task.status, discarded: ended.discarded, repeated: false };
        self.save.ended(task, ended, self.now);
        reply
    }

    /// Who gets what, of what was ready and what this batch brings. At most `depth` tasks of each lane were read.
    pub(super) fn choose(&self, claims: &[Parked], loaded: &Loaded, depth: i64) -> Chosen {
        let fresh = self.save.new_tasks.values().map(|(task, _)| task);
        let mut candidates: Vec<Candidate> = loaded
            .candidates
            .iter()
            // Submitted again, which the commit will find out.
            .filter(|task| !self.save.new_tasks.contains_key(&task.id))
            .chain(fresh.filter(|task| task.reason == Some(PendingReason::Queued)))
            .map(|task| self.candidate(task))
            .collect();
        candidates.sort_by(|one, other| one.order().cmp(&other.order()));
        let mut fenced = Vec::with_capacity(claims.len());
        let mut wants = Vec::new();
        for parked in claims {
            let request = &parked.request;
            let holds = loaded.holders.get(request.worker.as_str());
            let is_fenced = holds != Some(&(request.owner, request.worker_fence));
            fenced.push(is_fenced);
            if !is_fenced {
                let mut lanes = self.inner.lanes.fitting(&request.capabilities);
                let new = self.save.new_lanes.values();
                let new = new.filter(|lane| lane.requires.satisfied_by(&request.capabilities));
                lanes.extend(new.map(|lane| lane.id.clone()));
                let (worker, loaded) = (request.worker.clone(), request.loaded.clone());
                wants.push(Want { worker, lanes, loaded, ahead: request.ahead });
            }
        }
        let given = self.assign(&candidates, &wants);
        let unserved = given.iter().any(Option::is_none);
        let hidden = wants.iter().zip(&given).any(|(want, given)| hides(&candidates, want, *given, depth));
        let mut given = given.into_iter();
        let tasks = fenced
            .iter()
            .map(|fenced| {
                let index = if *fenced { None } else { given.next().flatten() };
                index.and_then(|index| candidates.get(index)).map(|candidate| candidate.id)
            })
            .collect();
        Chosen { tasks, fenced, unserved, hidden }
    }

    /// Busy workers do not get what was given back for an idle one a moment ago.
    fn assign(&self, candidates: &[Candidate], wants: &[Want]) -> Vec<Option<usize>> {
        let reserved = self.inner.beats.reserved();
        if reserved.is_empty() {
            return assign(candidates, wants, self.now);
        }
        let (busy, idle): (Vec<&Want>, Vec<&Want>) = wants.iter().partition(|want| want.ahead);
        let first = assign(candidates, &idle, self.now);
        let left = (0..candidates.len())
            .filter(|index| !first.contains(&Some(*index)) && !reserved.contains(&candidates[*index].id));
        let left: Vec<usize> = left.collect();
        let rest: Vec<Candidate> = left.iter().map(|index| candidates[*index].clone()).collect();
        let second = assign(&rest, &busy, self.now);
        let mut first = first.into_iter();
        let mut second = second.into_iter().map(|index| index.map(|index| left[index]));
        let next = |want: &Want| if want.ahead { second.next() } else { first.next() };
        wants.iter().map(next).map(Option::flatten).collect()
    }

    fn candidate(&self, task: &Task) -> Candidate {
        Candidate {
            id: task.id,
            lane: task.lane.clone(),
            rank: task.rank,
            priority: task.priority,
            affinity: task.affinity,
            avoid: avoids(task.avoid_worker.clone(), task.avoid_until, self.now),
            since: task.run_at,
        }
    }

    /// Makes leases of what was chosen.
    pub(super) fn serve(
        &mut self,
        claims: &[Parked],
        chosen: Chosen,
        loaded: &mut Loaded,
    ) -> Result<Vec<Served>, Fault> {
        let policy = &self.inner.sessions.options().policy;
        let mut waiting: HashMap<TaskId, Task> =
            loaded.candidates.iter().map(|task| (task.id, task.clone())).collect();
        let mut served = Vec::with_capacity(claims.len());
        for ((parked, task), fenced) in claims.iter().zip(chosen.tasks).zip(chosen.fenced) {
            let request = &parked.request;
            let Some(id) = task else {
                served.push(if fenced { Served::Fenced } else { self.ask_back(parked, loaded) });
                continue;
            };
            let by = Claimer {
                owner: request.owner,
                worker: request.worker.clone(),
                gateway: request.gateway.clone(),
                ahead: request.ahead,
            };
            let fresh = self.save.new_tasks.get(&id).map(|(task, input)| (task.clone(), Some(input.clone())));
            let found = fresh.or_else(|| waiting.remove(&id).map(|task| (task, None)));
            let (mut task, input) =
                found.ok_or_else(|| Error::Corrupt(format!("task {id} was chosen and is not there")))?;
            let (lease, attempt, event) = transition::claim(&mut task, self.now, policy, &by, Uuid::new_v4())
                .map_err(|error| Error::Corrupt(format!("task {id} was ready, but {error}")))?;
            self.save.claimed(Status::Pending, &task, &lease, &attempt, event);
            let input = input.unwrap_or_else(|| {
                self.save.inputs.push(id);
                empty_input()
            });
            served.push(Served::Claim(Box::new(Claim { task, input, lease, adopted: false })));
        }
        Ok(served)
    }

    /// A worker is idle and there is nothing for it: what waits in another worker's queue could start sooner here.
    fn ask_back(&mut self, parked: &Parked, loaded: &Loaded) -> Served {
        let request = &parked.request;
        // What is cancelled meanwhile does not come.
        let comes = |ahead: &Ahead| ahead.wanted && !ahead.cancelled;
        let still = parked
            .marked
            .filter(|marked| loaded.ahead.iter().any(|ahead| ahead.candidate.id == *marked && comes(ahead)));
        if request.ahead || !parked.stays() || still.is_some() {
            return Served::Nothing { marked: still };
        }
        let lanes = self.inner.lanes.fitting(&request.capabilities);
        let want = Want { worker: request.worker.clone(), lanes, loaded: Vec::new(), ahead: false };
        // What others asked for, in this process or elsewhere, is on its way to them.
        let asked = loaded.ahead.iter().filter(|ahead| ahead.wanted).map(|ahead| ahead.candidate.id);
        let expected = asked.chain(self.save.wanted.iter().copied()).collect();
        let marked = want_back(&loaded.ahead, &want, &expected);
        let marked = marked.and_then(|index| loaded.ahead.get(index)).map(|ahead| ahead.candidate.id);
        self.save.wanted.extend(marked);
        Served::Nothing { marked }
    }
}

/// Whether tasks that avoid a worker fill what was read of a lane, so that what is behind them and before what the
/// worker gets cannot be seen.
fn hides(candidates: &[Candidate], want: &Want, given: Option<usize>, depth: i64) -> bool {
    let avoids = |candidate: &&Candidate| candidate.avoid.as_ref() == Some(&want.worker);
    candidates.iter().filter(avoids).filter(|candidate| want.lanes.contains(&candidate.lane)).any(
        |avoiding| {
            let of_lane = || (0..candidates.len()).filter(|index| candidates[*index].lane == avoiding.lane);
            let full = i64::try_from(of_lane().count()).is_ok_and(|count| count >= depth);
            full && given.is_none_or(|given| of_lane().next_back().is_some_and(|last| last < given))
        },
    )
}

/// Stands in until the input has been read with the commit.
fn empty_input() -> remuda_core::TaskInput {
    let workflow = serde_json::value::RawValue::NULL.to_owned();
    remuda_core::TaskInput {
        workflow,
        placements: Vec::new(),
        requires: Requirements::default(),
        extra: None,
    }
}

/// The task with this id, if there is one.
fn with_id(id: TaskId, loaded: &Loaded) -> Option<&Task> {
    let candidate = || loaded.candidates.iter().find(|task| task.id == id);
    loaded.existing.get(&id).or_else(|| loaded.tasks.get(&id)).or_else(candidate)
}

/// Whoever reports on a lease, with its task.
enum Reporter<'a> {
    Holds(&'a mut Task),
    Held(&'a Task),
    Fenced,
}

/// What the word of an owner on a lease is worth. The task is locked.
fn reporter(owner: OwnerId, lease: LeaseRef, loaded: &mut Loaded) -> Reporter<'_> {
    let had = loaded.owners.get(&lease.task).copied();
    let Some(task) = loaded.tasks.get_mut(&lease.task) else { return Reporter::Fenced };
    match Standing::of(task, had, owner, lease) {
        Standing::Holds => Reporter::Holds(task),
        Standing::Held => Reporter::Held(task),
        Standing::Fenced => Reporter::Fenced,
    }
}
