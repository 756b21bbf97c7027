//! One batch: everything that was waiting, in one transaction.
//!
//! ```text
//!  begin, lock and read ──▶ decide, in Rust ──▶ write and commit
//!        one round trip                              one round trip
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rand::RngExt as _;
use remuda_core::schedule::{AFFINITY_WINDOW, Candidate, UNKNOWN_COST_MS, Want, assign, learn_cost};
use remuda_core::transition::{self, Claimer, Ending};
use remuda_core::{
    Claim, Lane, LaneId, LeaseRef, NewTask, PendingReason, Requirements, Sha256, Status, Task, TaskId,
    Tenant, Timestamp,
};
use uuid::Uuid;

use super::fault::Fault;
use super::inner::Inner;
use super::load::{self, Loaded};
use super::queue::{Answer, Batch, Command, Parked, Work};
use super::save::{Idem, Save, Tidings};
use crate::{EndReply, Error, Result, Submitted};

/// The most tasks of one lane that are looked at for a claim.
const DEEPEST: i64 = 2048;

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

/// What became of a batch, in the order of its commands and claims.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) served: Vec<Served>,
    pub(super) tidings: Tidings,
}

/// Runs a batch. `careful`: look for tasks that were submitted before under the same id, which is seldom and shows
/// itself as a fault of the first try.
pub(super) async fn run(
    inner: &Inner,
    commands: &[Command],
    claims: &[Parked],
    careful: bool,
    shard: i16,
) -> Result<Done, Fault> {
    let session = inner.sessions.unopened().await?;
    let needs = needs(inner, commands, claims, careful);
    let client = session.client()?;
    let mut loaded = load::load(client, inner.sessions.options(), &needs).await?;
    let mut desk = Desk { inner, now: loaded.now, save: Save::default(), requires: HashMap::new() };
    let outcomes: Vec<Outcome> = {
        load_lanes(&mut desk, client, commands, &loaded).await?;
        let mut seen = Seen::default();
        commands.iter().map(|command| desk.command(command, &mut loaded, &mut seen)).collect()
    };
    desk.save.clocks.clone_from(&loaded.changed_clocks());
    let chosen = if claims.is_empty() {
        Chosen::default()
    } else {
        let mut depth = needs.depth;
        loop {
            let chosen = desk.choose(claims, &loaded);
            let deeper = depth < DEEPEST && chosen.unserved && loaded.is_full(depth);
            if !deeper {
                break chosen;
            }
            depth *= 8;
            loaded.candidates = load::candidates(client, &needs.claim_lanes, depth).await?;
        }
    };
    let served = desk.serve(claims, chosen, &mut loaded)?;
    let Desk { save, .. } = desk;
    finish(inner, session, save, outcomes, served, &loaded, shard).await
}

async fn finish(
    inner: &Inner,
    session: super::session::Session,
    save: Save,
    mut outcomes: Vec<Outcome>,
    mut served: Vec<Served>,
    loaded: &Loaded,
    shard: i16,
) -> Result<Done, Fault> {
    if save.is_empty() {
        session.client()?.batch_execute("ROLLBACK").await?;
        session.done();
        return Ok(Done { outcomes, served, tidings: Tidings::default() });
    }
    let mut inputs = save.commit(session, shard).await?;
    for served in &mut served {
        let Served::Claim(claim) = served else { continue };
        // What was locked for us cannot have gone.
        if let Some(input) = inputs.remove(&claim.task.id) {
            claim.input = input;
        }
    }
    for outcome in &mut outcomes {
        // A task that was claimed in the same commit is shown as it is now.
        if let Outcome::Answer(Ok(Answer::Submitted(submitted))) = outcome
            && let Submitted::New(task) = &mut **submitted
            && let Some((now, _)) = save.new_tasks.get(&task.id)
        {
            task.clone_from(now);
        }
    }
    let mut tidings = save.tidings();
    // While we held them, tasks that we did not take were invisible to everybody else.
    let taken = served.iter().filter(|served| matches!(served, Served::Claim(_))).count();
    if taken > 0 && loaded.candidates.len() > save.inputs.len() {
        tidings.ready.extend(loaded.candidates.iter().map(|task| task.lane.clone()));
    }
    inner.lanes.learn(save.new_lanes.into_values());
    inner.lanes.advance(&save.lane_v);
    Ok(Done { outcomes, served, tidings })
}

/// What has to be read for a batch.
fn needs<'a>(inner: &Inner, commands: &'a [Command], claims: &'a [Parked], careful: bool) -> load::Needs<'a> {
    let mut needs = load::Needs::default();
    for command in commands {
        match &command.work {
            Work::Submit(new) => {
                needs.submit(new);
                if careful {
                    needs.existing.push(new.id.0);
                }
            }
            Work::End(lease, ending) => {
                needs.tasks.insert(lease.task);
                needs.learns |= matches!(**ending, Ending::Completed { gpu_ms: Some(_), .. });
            }
            Work::GiveBack(lease, _) => {
                needs.tasks.insert(lease.task);
            }
        }
    }
    let mut wants = 0;
    let mut window = 0;
    for parked in claims {
        let request = &parked.request;
        needs.workers.insert(request.worker.as_str());
        needs.claim_lanes.extend(inner.lanes.fitting(&request.capabilities));
        needs.ahead |= !request.ahead && parked.stays();
        wants += 1;
        if !request.loaded.is_empty() {
            window = i64::try_from(AFFINITY_WINDOW).unwrap_or(0);
        }
    }
    needs.depth = wants + window;
    needs
}

/// A task given back with what was learnt goes to the lane of all that is known of it: read those lanes that are
/// not known here.
async fn load_lanes(
    desk: &mut Desk<'_>,
    client: &tokio_postgres::Client,
    commands: &[Command],
    loaded: &Loaded,
) -> Result<(), Fault> {
    for command in commands {
        let Work::GiveBack(lease, Some(_)) = &command.work else { continue };
        let Some(task) = loaded.tasks.get(&lease.task) else { continue };
        let requires = match desk.inner.lanes.requires(&task.lane) {
            Some(requires) => requires,
            None => load::requires(client, &task.lane).await?,
        };
        desk.requires.insert(task.id, requires);
    }
    Ok(())
}

/// Submissions of this batch, to find repetitions within it.
#[derive(Default)]
struct Seen<'a> {
    ids: BTreeSet<TaskId>,
    keys: BTreeSet<(&'a Tenant, &'a str)>,
}

/// Which candidate each claim gets.
#[derive(Debug, Default)]
struct Chosen {
    tasks: Vec<Option<TaskId>>,
    fenced: Vec<bool>,
    /// Some claim that could be served got nothing.
    unserved: bool,
}

/// Where decisions are made.
struct Desk<'a> {
    inner: &'a Inner,
    now: Timestamp,
    save: Save,
    requires: HashMap<TaskId, Requirements>,
}

impl Desk<'_> {
    fn command<'c>(&mut self, command: &'c Command, loaded: &mut Loaded, seen: &mut Seen<'c>) -> Outcome {
        match &command.work {
            Work::Submit(new) => self.submit(new, loaded, seen),
            Work::End(lease, ending) => Outcome::Answer(self.end(*lease, ending, loaded).map(Answer::Ended)),
            Work::GiveBack(lease, learnt) => {
                Outcome::Answer(self.give_back(*lease, learnt.as_ref(), loaded).map(Answer::Ended))
            }
        }
    }

    fn submit<'c>(&mut self, new: &'c NewTask, loaded: &mut Loaded, seen: &mut Seen<'c>) -> Outcome {
        let key = new.idempotency.as_ref().map(|idempotency| (&new.tenant, idempotency.key.as_str()));
        if seen.ids.contains(&new.id) || key.is_some_and(|key| seen.keys.contains(&key)) {
            return Outcome::Later;
        }
        if let Some(before) = before(new, loaded) {
            return Outcome::Answer(before.map(|task| Answer::Submitted(Box::new(Submitted::Before(task)))));
        }
        seen.ids.insert(new.id);
        seen.keys.extend(key);
        let lane = new.input.requires.lane();
        let cost = loaded.shapes.get(&new.shape).copied().unwrap_or(UNKNOWN_COST_MS);
        let v = self.inner.lanes.v(&lane);
        let head = loaded.heads.entry(lane.clone()).or_insert_with(|| {
            let lane = Lane { id: lane.clone(), requires: new.input.requires.clone() };
            self.save.new_lanes.insert(lane.id.clone(), lane);
            load::Head { v: 0, first: None }
        });
        let clock = loaded.clocks.entry(new.tenant.clone()).or_default();
        let rank = clock.enter(head.first.unwrap_or(head.v.max(v)), new.priority, cost);
        let (task, event) = transition::submit(new, self.now, rank, cost);
        if task.reason == Some(PendingReason::Queued) {
            head.first = Some(head.first.map_or(rank, |first| first.min(rank)));
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
        loaded.touched.insert(new.tenant.clone());
        self.save.submitted(task.clone(), new.input.clone(), event);
        Outcome::Answer(Ok(Answer::Submitted(Box::new(Submitted::New(task)))))
    }

    fn end(&mut self, lease: LeaseRef, ending: &Ending, loaded: &mut Loaded) -> Result<EndReply> {
        let task = held(lease, &mut loaded.tasks)?;
        if task.status != Status::Running {
            let discarded = task.status == Status::Cancelled && matches!(ending, Ending::Completed { .. });
            return Ok(EndReply { status: task.status, discarded, repeated: true });
        }
        let dice = rand::rng().random();
        let policy = &self.inner.sessions.options().policy;
        let ended = transition::end(task, self.now, policy, ending.clone(), dice);
        if let Some(measured) = ended.gpu_ms {
            let believed = self.save.shapes.get(&task.shape).or(loaded.shapes.get(&task.shape)).copied();
            let cost = learn_cost(believed, measured);
            if believed != Some(cost) {
                self.save.shapes.insert(task.shape, cost);
            }
        }
        let reply = EndReply { status: task.status, discarded: ended.discarded, repeated: false };
        self.save.ended(task, ended, self.now);
        Ok(reply)
    }

    fn give_back(
        &mut self,
        lease: LeaseRef,
        learnt: Option<&Requirements>,
        loaded: &mut Loaded,
    ) -> Result<EndReply> {
        let task = held(lease, &mut loaded.tasks)?;
        if task.status != Status::Running {
            return Ok(EndReply { status: task.status, discarded: false, repeated: true });
        }
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
        let reply = EndReply { status: task.status, discarded: false, repeated: false };
        self.save.ended(task, ended, self.now);
        Ok(reply)
    }

    /// Who gets what, of what was ready and what this batch brings.
    fn choose(&self, claims: &[Parked], loaded: &Loaded) -> Chosen {
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
        let given = assign(&candidates, &wants, self.now);
        let unserved = given.iter().any(Option::is_none);
        let mut given = given.into_iter();
        let tasks = fenced
            .iter()
            .map(|fenced| {
                let index = if *fenced { None } else { given.next().flatten() };
                index.and_then(|index| candidates.get(index)).map(|candidate| candidate.id)
            })
            .collect();
        Chosen { tasks, fenced, unserved }
    }

    fn candidate(&self, task: &Task) -> Candidate {
        let avoids = task.avoid_until.is_some_and(|until| until > self.now);
        Candidate {
            id: task.id,
            lane: task.lane.clone(),
            rank: task.rank,
            priority: task.priority,
            affinity: task.affinity,
            avoid: task.avoid_worker.clone().filter(|_| avoids),
            since: task.run_at,
        }
    }

    /// Makes leases of what was chosen.
    fn serve(
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
            self.save.claimed(Status::Pending, &task, &lease, attempt, event);
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
        let still = parked
            .marked
            .filter(|marked| loaded.ahead.iter().any(|ahead| ahead.candidate.id == *marked && ahead.wanted));
        if request.ahead || !parked.stays() || still.is_some() {
            return Served::Nothing { marked: still };
        }
        let lanes = self.inner.lanes.fitting(&request.capabilities);
        let marked = loaded.ahead.iter().find(|ahead| {
            let avoided = ahead.candidate.avoid.as_ref() == Some(&request.worker);
            !ahead.wanted
                && ahead.worker != request.worker.as_str()
                && !avoided
                && lanes.contains(&ahead.candidate.lane)
                && !self.save.wanted.contains(&ahead.candidate.id)
        });
        let marked = marked.map(|ahead| ahead.candidate.id);
        self.save.wanted.extend(marked);
        Served::Nothing { marked }
    }
}

/// Stands in until the input has been read with the commit.
fn empty_input() -> remuda_core::TaskInput {
    let workflow = serde_json::value::RawValue::NULL.to_owned();
    remuda_core::TaskInput { workflow, placements: Vec::new(), requires: Requirements::default() }
}

/// What an earlier submission with the same id or key made.
fn before(new: &NewTask, loaded: &Loaded) -> Option<Result<Task>> {
    let known = || loaded.candidates.iter().find(|task| task.id == new.id);
    if let Some(task) = loaded.existing.get(&new.id).or_else(|| loaded.tasks.get(&new.id)).or_else(known) {
        return Some(Ok(task.clone()));
    }
    let idempotency = new.idempotency.as_ref()?;
    let (request, task): &(Sha256, Task) =
        loaded.idems.get(&(new.tenant.as_str().to_owned(), idempotency.key.clone()))?;
    if *request == idempotency.request {
        Some(Ok(task.clone()))
    } else {
        Some(Err(Error::Conflict { task: task.id }))
    }
}

/// The task, if this lease is or was the last on it.
fn held(lease: LeaseRef, tasks: &mut HashMap<TaskId, Task>) -> Result<&mut Task> {
    tasks.get_mut(&lease.task).filter(|task| task.fence == lease.fence).ok_or(Error::Fenced)
}

/// Runs batches until the queue is closed.
pub(super) async fn worker(inner: std::sync::Arc<Inner>, slot: i16) {
    let shard = inner.shard(slot);
    while let Some(batch) = inner.queue.next().await {
        Box::pin(work(&inner, batch, shard)).await;
    }
}

async fn work(inner: &Inner, batch: Batch, shard: i16) {
    let tide = batch.tide();
    let Batch { commands, claims, .. } = batch;
    match repeat(inner, &commands, &claims, shard).await {
        Ok(done) => answer(inner, commands, claims, done, tide),
        // One of them is at fault: each for itself, so that the others do not suffer.
        Err(Fault::Refused(_)) if commands.len() + claims.len() > 1 => {
            for command in commands {
                let one = vec![command];
                match repeat(inner, &one, &[], shard).await {
                    Ok(done) => answer(inner, one, Vec::new(), done, tide),
                    Err(fault) => fail(one, Vec::new(), &fault.into()),
                }
            }
            if !claims.is_empty() {
                match repeat(inner, &[], &claims, shard).await {
                    Ok(done) => answer(inner, Vec::new(), claims, done, tide),
                    Err(fault) => fail(Vec::new(), claims, &fault.into()),
                }
            }
        }
        Err(fault) => fail(commands, claims, &fault.into()),
    }
}

async fn repeat(inner: &Inner, commands: &[Command], claims: &[Parked], shard: i16) -> Result<Done, Fault> {
    let mut tries = super::session::Tries::default();
    let mut careful = false;
    loop {
        match inner.sessions.bounded(run(inner, commands, claims, careful, shard)).await {
            Ok(done) => return Ok(done),
            Err(fault) => tries.again(fault).await?,
        }
        careful = true;
    }
}

fn answer(inner: &Inner, commands: Vec<Command>, claims: Vec<Parked>, done: Done, tide: u64) {
    let mut later = Vec::new();
    for (command, outcome) in commands.into_iter().zip(done.outcomes) {
        match outcome {
            Outcome::Later => later.push(command),
            Outcome::Answer(answer) => {
                if let Some(reply) = command.reply {
                    // A caller that is gone can ask again.
                    let _ = reply.send(answer);
                }
            }
        }
    }
    let mut unserved = Vec::new();
    for (mut parked, served) in claims.into_iter().zip(done.served) {
        match served {
            Served::Claim(claim) => parked.serve(*claim, &inner.queue),
            Served::Fenced => parked.refuse(Error::Fenced),
            Served::Nothing { marked } => {
                parked.marked = marked;
                unserved.push(parked);
            }
        }
    }
    inner.announce(done.tidings);
    inner.queue.push_again(later);
    inner.queue.put_back(unserved, tide);
}

fn fail(commands: Vec<Command>, claims: Vec<Parked>, error: &Error) {
    for command in commands {
        if let Some(reply) = command.reply {
            let _ = reply.send(Err(super::fault::copy(error)));
        }
    }
    for parked in claims {
        parked.refuse(super::fault::copy(error));
    }
}

/// Lanes by how far they have come, for [`Loaded`].
pub(super) type Heads = BTreeMap<LaneId, load::Head>;
