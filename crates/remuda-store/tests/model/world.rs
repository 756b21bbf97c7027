//! The store under test, with the steps done to it and to its shadow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use remuda_core::transition::{Claimer, Ending};
use remuda_core::{
    Capabilities, Claim, Failure, Fence, Lease, LeaseRef, NewTask, OwnerId, Phase, Policy, Priority,
    Requirements, Task, TaskId, TaskResult, Tenant, WorkerId, WorkerSpec,
};
use remuda_store::conformance::Fixture;
use remuda_store::{
    Acquired, AdoptRequest, BeatRequest, ClaimRequest, Clock as _, Error, LeaseBeat, ManualClock, Options,
    Store, Submitted,
};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::shadow::Shadow;
use super::steps::{By, How, OWNERS, Step, WORKERS};

/// Who holds a worker, as the store must see it.
#[derive(Debug, Clone)]
struct Hold {
    owner: OwnerId,
    fence: Fence,
    released: bool,
}

pub(crate) struct World {
    pub(super) fixture: Box<dyn Fixture>,
    clock: Arc<ManualClock>,
    options: Options,
    pub(super) store: Arc<dyn Store>,
    /// Another process on the same store, where that is possible.
    pub(super) second: Option<Arc<dyn Store>>,
    pub(super) shadow: Shadow,
    owners: Vec<OwnerId>,
    /// The fence under which each owner believes to hold each worker.
    believed: BTreeMap<(usize, usize), Fence>,
    holds: BTreeMap<usize, Hold>,
    /// Every submission that was made, newest last.
    submissions: Vec<NewTask>,
    /// Every lease that was ever given, and to whom, newest last.
    leases: Vec<(usize, LeaseRef)>,
    /// What the process that owns a file held before it was started again, and has not taken up since.
    left_behind: BTreeSet<LeaseRef>,
    /// Tasks that changed in the last step.
    pub(super) touched: BTreeSet<TaskId>,
    steps: usize,
}

pub(super) fn worker_id(worker: usize) -> WorkerId {
    WorkerId::new(format!("w{worker}")).expect("it is a name")
}

fn label(name: &str) -> Requirements {
    Requirements { labels: [name.to_owned()].into(), ..Requirements::default() }
}

/// What tasks ask for: nothing, the one, the other, both.
fn requirements(lane: usize) -> Requirements {
    match lane % 4 {
        0 => Requirements::default(),
        1 => label("a"),
        2 => label("b"),
        _ => label("a").and(&label("b")),
    }
}

/// The first worker can do nothing special, the second one thing, the third everything.
fn capabilities(worker: usize) -> Capabilities {
    let labels = ["a", "b", "learnt"].into_iter().take([0, 1, 3][worker]);
    Capabilities { labels: labels.map(str::to_owned).collect(), ..Capabilities::default() }
}

/// The newest is number zero.
fn nth_newest<T>(things: &[T], n: usize) -> Option<&T> {
    things.iter().rev().nth(n % things.len().max(1))
}

impl World {
    pub(crate) async fn new(fixture: impl Fixture) -> Self {
        let clock = Arc::new(ManualClock::default());
        let owners: Vec<OwnerId> = (0..OWNERS).map(|_| OwnerId(Uuid::new_v4())).collect();
        let mut options = Options::new(owners[0]);
        options.settle = Duration::ZERO;
        options.clock = Some(clock.clone());
        options.policy = Policy { max_losses: 2, ..Policy::default() };
        let fixture: Box<dyn Fixture> = Box::new(fixture);
        let store = fixture.open(options.clone()).await.expect("the store opens");
        let shadow =
            Shadow { policy: options.policy.clone(), lives: BTreeMap::new(), lanes: BTreeMap::new() };
        let mut world = Self {
            fixture,
            clock,
            options,
            store,
            second: None,
            shadow,
            owners,
            believed: BTreeMap::new(),
            holds: BTreeMap::new(),
            submissions: Vec::new(),
            leases: Vec::new(),
            left_behind: BTreeSet::new(),
            touched: BTreeSet::new(),
            steps: 0,
        };
        for worker in 0..WORKERS {
            world.acquire(worker, worker).await;
        }
        world.open_second().await;
        world
    }

    async fn open_second(&mut self) {
        if !self.fixture.is_shared() {
            return;
        }
        // Lanes are known to both from the beginning: noticing new ones is allowed to take a moment.
        for lane in 0..4 {
            let task = self.new_task(0, 5, lane);
            self.store.submit(task.clone()).await.expect("it is taken in");
            self.store.cancel(task.id).await.expect("it waits");
            assert_eq!(self.store.forget(&[task.id]).await.expect("it ended"), 1);
        }
        let options = Options { owner: OwnerId(Uuid::new_v4()), ..self.options.clone() };
        self.second = Some(self.fixture.open(options).await.expect("a second process may have it"));
    }

    /// Every other step goes through the other process.
    fn either(&self) -> Arc<dyn Store> {
        match &self.second {
            Some(second) if self.steps % 2 == 1 => second.clone(),
            _ => self.store.clone(),
        }
    }

    fn new_task(&self, tenant: usize, priority: i64, lane: usize) -> NewTask {
        let mut new = NewTask::new(RawValue::from_string("{}".to_owned()).expect("it is JSON"));
        new.tenant = Tenant::new(["one", "two"][tenant % 2]).expect("it is a name");
        new.priority = Priority::new(priority).expect("it is in range");
        new.input.requires = requirements(lane);
        new
    }

    pub(crate) async fn apply(&mut self, step: Step) {
        self.steps += 1;
        self.touched.clear();
        match step {
            Step::Submit { tenant, priority, lane, delay, deadline, retries } => {
                let now = self.clock.now();
                let mut new = self.new_task(tenant, priority, lane);
                new.not_before = delay.map(|seconds| now + Duration::from_secs(seconds));
                new.deadline = deadline.map(|seconds| now + Duration::from_secs(seconds));
                new.max_retries = retries;
                self.submissions.push(new.clone());
                self.submit(new).await;
            }
            Step::SubmitAgain { task } => {
                if let Some(new) = nth_newest(&self.submissions, task).cloned() {
                    self.submit(new).await;
                }
            }
            Step::Claim { by, worker, ahead } => self.claim(self.who(by, worker), worker, ahead).await,
            Step::Beat { owner, phase } => self.beat(owner, phase).await,
            Step::End { lease, how } => self.end(lease, how).await,
            Step::GiveBack { lease, learnt } => self.give_back(lease, learnt).await,
            Step::Adopt { by, worker, known } => self.adopt(self.who(by, worker), worker, known).await,
            Step::Acquire { owner, worker } => self.acquire(owner, worker).await,
            Step::Release { owner, worker } => self.release(owner, worker).await,
            Step::Cancel { task } => self.cancel(task).await,
            Step::Hasten { task } => self.hasten(task).await,
            Step::Tidy => self.tidy().await,
            Step::Forget { task } => self.forget(task).await,
            Step::Forward { seconds } => self.clock.advance(Duration::from_secs(seconds)),
            Step::Back { seconds } => self.clock.set_back(Duration::from_secs(seconds)),
            Step::Restart => self.restart().await,
        }
    }

    async fn submit(&mut self, new: NewTask) {
        let (id, requires) = (new.id, new.input.requires.clone());
        let answer = self.either().submit(new.clone()).await.expect("it is taken in");
        self.touched.insert(id);
        match (self.shadow.lives.get(&id), answer) {
            (Some(life), Submitted::Before(task)) => assert_eq!(task, life.task),
            (None, Submitted::New(task)) => {
                let (expected, _) =
                    remuda_core::transition::submit(&new, self.clock.now(), task.rank, task.cost_ms);
                assert_eq!(task, expected);
                self.shadow.submitted(task, requires);
            }
            (life, answer) => panic!("{answer:?} for {life:?}"),
        }
    }

    async fn claim(&mut self, owner: usize, worker: usize, ahead: bool) {
        let Some(fence) = self.believed.get(&(owner, worker)).copied() else { return };
        let able = capabilities(worker);
        let request = ClaimRequest {
            owner: self.owners[owner],
            worker: worker_id(worker),
            worker_fence: fence,
            capabilities: Arc::new(able.clone()),
            loaded: Vec::new(),
            ahead,
            gateway: None,
            wait: Duration::ZERO,
        };
        let answer = self.store.claim(request).await;
        if !self.holds_now(owner, worker) {
            assert!(matches!(answer, Err(Error::Fenced)), "a claim without the worker: {answer:?}");
            return;
        }
        let now = self.clock.now();
        let queue = self.shadow.queue(&worker_id(worker), &able, now);
        let late = |id: &&TaskId| self.shadow.lives[id].task.deadline.is_some_and(|deadline| deadline <= now);
        let first = queue.first();
        // Whether a task is still given out between its deadline and the next housekeeping is left open.
        let in_time = queue.iter().find(|id| !late(id));
        let got = answer.expect("claims are answered");
        let id = got.as_ref().map(|claim| claim.task.id);
        assert!(id.as_ref() == first || id.as_ref() == in_time, "{id:?} instead of {first:?} or {in_time:?}");
        let Some(claim) = got else { return };
        let by = Claimer { owner: self.owners[owner], worker: worker_id(worker), gateway: None, ahead };
        self.shadow.claim(claim.task.id, now, &by, claim.lease.prompt_id);
        self.given(owner, &claim, false);
    }

    /// Checks what a claim or an adoption handed out.
    fn given(&mut self, owner: usize, claim: &Claim, adopted: bool) {
        let life = &self.shadow.lives[&claim.task.id];
        assert_eq!(claim.task, life.task);
        assert_eq!(Some(&claim.lease), life.lease.as_ref());
        assert_eq!(claim.adopted, adopted);
        self.leases.push((owner, claim.lease.reference()));
        self.touched.insert(claim.task.id);
    }

    fn who(&self, by: By, worker: usize) -> usize {
        match by {
            By::Holder => (0..OWNERS).find(|owner| self.holds_now(*owner, worker)).unwrap_or_default(),
            By::Owner(owner) => owner,
        }
    }

    fn holds_now(&self, owner: usize, worker: usize) -> bool {
        let believed = self.believed.get(&(owner, worker));
        self.holds.get(&worker).is_some_and(|hold| {
            !hold.released && hold.owner == self.owners[owner] && Some(&hold.fence) == believed
        })
    }

    async fn beat(&mut self, owner: usize, phase: Phase) {
        let mine = self.leases.iter().filter(|(holder, _)| *holder == owner).map(|(_, lease)| *lease);
        let mine: BTreeSet<LeaseRef> = mine.collect();
        let leases = mine.iter().map(|&lease| LeaseBeat { lease, phase, progress: 0.5 }).collect();
        let believed = self.believed.iter().filter(|((holder, _), _)| *holder == owner);
        let workers: Vec<_> = believed.map(|((_, worker), fence)| (*worker, *fence)).collect();
        let beats = workers.iter().map(|(worker, fence)| remuda_store::WorkerBeat {
            id: worker_id(*worker),
            fence: *fence,
            report: Default::default(),
        });
        let request =
            BeatRequest { owner: self.owners[owner], leases, workers: beats.collect(), wait: Duration::ZERO };
        let reply = self.either().beat(request).await.expect("beats are answered");
        let now = self.clock.now();
        let (mut lost, mut cancelled) = (BTreeSet::new(), BTreeSet::new());
        for lease in mine {
            let Some(life) = self.shadow.lives.get_mut(&lease.task).filter(|life| life.is_held_by(lease))
            else {
                lost.insert(lease);
                continue;
            };
            if life.task.cancel_at.is_some() {
                cancelled.insert(lease);
            }
            let held = life.lease.as_mut().expect("it is held");
            held.until = now + self.options.policy.lease;
            held.phase = phase;
            held.progress = 0.5;
            self.left_behind.remove(&lease);
            if phase == Phase::Rendering {
                held.rendering_since.get_or_insert(now);
            }
            self.touched.insert(lease.task);
        }
        assert_eq!(reply.lost.into_iter().collect::<BTreeSet<_>>(), lost);
        let news = reply.news.into_iter().filter(|news| news.cancel).map(|news| news.lease);
        assert_eq!(news.collect::<BTreeSet<_>>(), cancelled);
        let gone = workers.iter().filter(|(worker, _)| !self.holds_now(owner, *worker));
        let gone: BTreeSet<_> = gone.map(|(worker, _)| worker_id(*worker)).collect();
        assert_eq!(reply.lost_workers.into_iter().collect::<BTreeSet<_>>(), gone);
    }

    async fn actual(&self, id: TaskId) -> Task {
        self.store.task(id).await.expect("it can be read").expect("it is there")
    }

    async fn end(&mut self, lease: usize, how: How) {
        let Some((by, lease)) = nth_newest(&self.leases, lease).copied() else { return };
        let ending = match how {
            How::Completed => Ending::Completed { result: TaskResult::default(), gpu_ms: Some(7_000) },
            How::Failed(class, partial) => {
                let partial = partial.then(Box::<TaskResult>::default);
                Ending::Failed { failure: Failure::new(class, "it broke"), partial }
            }
            How::Cancelled => Ending::Cancelled,
        };
        let answer = self.either().end(self.owners[by], lease, ending.clone()).await;
        self.touched.insert(lease.task);
        if !self.is_current(lease) {
            self.stale(lease, answer);
            return;
        }
        let actual = self.actual(lease.task).await;
        let ended = self.shadow.end(lease.task, self.clock.now(), ending, &actual);
        let reply = answer.expect("its holder may end it");
        assert_eq!((reply.status, reply.discarded), (actual.status, ended.discarded));
        assert!(!reply.repeated);
    }

    async fn give_back(&mut self, lease: usize, learnt: bool) {
        let Some((by, lease)) = nth_newest(&self.leases, lease).copied() else { return };
        let learnt = learnt.then(|| label("learnt"));
        let answer = self.store.give_back(self.owners[by], lease, learnt.clone()).await;
        self.touched.insert(lease.task);
        if !self.is_current(lease) {
            self.stale(lease, answer);
            return;
        }
        self.shadow.give_back(lease.task, self.clock.now(), learnt.as_ref());
        let reply = answer.expect("its holder may give it back");
        assert_eq!((reply.status, reply.repeated), (self.shadow.lives[&lease.task].task.status, false));
    }

    fn is_current(&self, lease: LeaseRef) -> bool {
        self.shadow.lives.get(&lease.task).is_some_and(|life| life.is_held_by(lease))
    }

    /// A report with a lease that is over changes nothing: it is known, or it is refused.
    fn stale(&self, lease: LeaseRef, answer: remuda_store::Result<remuda_store::EndReply>) {
        match self.shadow.fence(lease.task) {
            None => assert!(answer.is_err(), "of a forgotten task: {answer:?}"),
            Some(fence) if fence == lease.fence => {
                let reply = answer.expect("the same holder's report is known");
                assert!(reply.repeated);
                assert_eq!(reply.status, self.shadow.lives[&lease.task].task.status);
            }
            Some(_) => assert!(matches!(answer, Err(Error::Fenced)), "{answer:?}"),
        }
    }

    async fn adopt(&mut self, owner: usize, worker: usize, known: bool) {
        let Some(fence) = self.believed.get(&(owner, worker)).copied() else { return };
        let known: Vec<LeaseRef> = if known {
            self.leases.iter().filter(|(holder, _)| *holder == owner).map(|(_, lease)| *lease).collect()
        } else {
            Vec::new()
        };
        let request = AdoptRequest {
            owner: self.owners[owner],
            worker: worker_id(worker),
            worker_fence: fence,
            gateway: None,
            known: known.clone(),
        };
        let answer = self.either().adopt(request).await;
        if !self.holds_now(owner, worker) {
            assert!(matches!(answer, Err(Error::Fenced)), "an adoption without the worker: {answer:?}");
            return;
        }
        let now = self.clock.now();
        let (mut must, mut may) = (BTreeSet::new(), BTreeSet::new());
        for lease in self.shadow.leases().filter(|lease| lease.worker == worker_id(worker)) {
            if lease.owner == self.owners[owner] {
                if !known.contains(&lease.reference()) {
                    must.insert(lease.task);
                }
            } else if self.left_behind.contains(&lease.reference()) {
                may.insert(lease.task);
            } else if lease.until < now && !self.never_runs_out(lease.owner) {
                must.insert(lease.task);
            }
        }
        let adopted = answer.expect("adoptions are answered");
        let got: BTreeSet<TaskId> = adopted.iter().map(|claim| claim.task.id).collect();
        assert_eq!(got.len(), adopted.len());
        assert!(must.is_subset(&got) && got.is_subset(&must.union(&may).copied().collect()), "{got:?}");
        for claim in adopted {
            self.shadow.adopt(claim.task.id, now, self.owners[owner]);
            self.given(owner, &claim, true);
        }
    }

    /// What the process that owns a file holds does not run out.
    fn never_runs_out(&self, owner: OwnerId) -> bool {
        !self.fixture.is_shared() && owner == self.options.owner
    }

    async fn acquire(&mut self, owner: usize, worker: usize) {
        let spec = WorkerSpec {
            id: worker_id(worker),
            endpoint: "http://127.0.0.1:8188".to_owned(),
            name: None,
            labels: capabilities(worker).labels,
        };
        let workers = self.store.workers().await.expect("it lists");
        let before = workers.iter().find(|known| known.spec.id == spec.id);
        let free = match (self.holds.get(&worker), before) {
            (Some(hold), Some(known)) if !hold.released && hold.owner != self.owners[owner] => {
                known.until < self.clock.now() && !self.never_runs_out(hold.owner)
            }
            _ => true,
        };
        match self.either().acquire_worker(spec, self.owners[owner]).await.expect("it answers") {
            Acquired::Yes(got) => {
                assert!(free, "a worker was taken from its holder");
                assert_eq!((got.owner, got.spec.id), (self.owners[owner], worker_id(worker)));
                let old = self.holds.get(&worker).map_or(Fence(0), |hold| hold.fence);
                assert!(got.fence > old, "the fence of a worker did not rise: {:?} after {old:?}", got.fence);
                self.believed.insert((owner, worker), got.fence);
                let hold = Hold { owner: got.owner, fence: got.fence, released: false };
                self.holds.insert(worker, hold);
            }
            Acquired::HeldBy(other) => {
                assert!(!free, "a free worker was not given");
                assert_eq!(other.owner, self.holds[&worker].owner);
            }
        }
    }

    async fn release(&mut self, owner: usize, worker: usize) {
        let Some(fence) = self.believed.get(&(owner, worker)).copied() else { return };
        let held = self.holds_now(owner, worker);
        let answer = self.either().release_worker(self.owners[owner], &worker_id(worker), fence).await;
        if held {
            answer.expect("its holder may let go");
            self.holds.get_mut(&worker).expect("it is held").released = true;
        } else {
            assert!(matches!(answer, Ok(()) | Err(Error::Fenced)), "{answer:?}");
        }
    }

    async fn cancel(&mut self, task: usize) {
        let Some(id) = nth_newest(&self.submissions, task).map(|new| new.id) else { return };
        let answer = self.either().cancel(id).await;
        if !self.shadow.lives.contains_key(&id) {
            assert!(matches!(answer, Err(Error::NotFound { .. })), "{answer:?}");
            return;
        }
        self.touched.insert(id);
        match self.shadow.cancel(id, self.clock.now()) {
            Ok(()) => assert_eq!(answer.expect("it had not ended"), self.shadow.lives[&id].task),
            Err(status) => assert!(matches!(answer, Err(Error::Finished(said)) if said == status)),
        }
    }

    async fn hasten(&mut self, task: usize) {
        let Some(id) = nth_newest(&self.submissions, task).map(|new| new.id) else { return };
        let answer = self.either().hasten(id).await;
        let now = self.clock.now();
        let Some(life) = self.shadow.lives.get_mut(&id) else {
            assert!(matches!(answer, Err(Error::NotFound { .. })), "{answer:?}");
            return;
        };
        self.touched.insert(id);
        if remuda_core::transition::release(&mut life.task, now) {
            assert_eq!(answer.expect("it waited"), life.task);
        } else if let Ok(task) = answer {
            assert_eq!(task, life.task);
        }
    }

    async fn tidy(&mut self) {
        let drivers = self.store.workers().await.expect("it lists");
        let drivers: BTreeMap<_, _> = drivers.iter().map(|row| (row.spec.id.clone(), row.until)).collect();
        let tidied = self.either().tidy().await.expect("it tidies");
        let now = self.clock.now();
        let (released, expired) = self.shadow.tidy(now);
        assert!(released.contains(&tidied.released), "{} released, not {released:?}", tidied.released);
        assert_eq!(usize::try_from(tidied.expired), Ok(expired.len()));
        for id in expired {
            // Whether what is late was released first is left open.
            let run_at = self.actual(id).await.run_at;
            self.shadow.lives.get_mut(&id).expect("it expired").task.run_at = run_at;
        }
        let over = |lease: &&Lease, waits: bool| {
            let worker = (0..WORKERS).find(|worker| worker_id(*worker) == lease.worker).expect("it is known");
            let hold = self.holds.get(&worker).filter(|hold| !hold.released);
            let driven = hold.and_then(|hold| match self.never_runs_out(hold.owner) {
                // Whether it is driven since this process began is not known here.
                true => waits.then_some(now),
                false => Some(drivers[&lease.worker]),
            });
            self.options.policy.is_lost(lease.until, driven, now) && !self.never_runs_out(lease.owner)
        };
        let surely = self.shadow.leases().filter(|lease| over(lease, true));
        let must: BTreeSet<TaskId> = surely.map(|lease| lease.task).collect();
        let perhaps = self.shadow.leases().filter(|lease| over(lease, false));
        let might: BTreeSet<TaskId> = perhaps.map(|lease| lease.task).collect();
        let left = self.shadow.leases().filter(|lease| self.left_behind.contains(&lease.reference()));
        let may: BTreeSet<TaskId> = left.map(|lease| lease.task).chain(might).collect();
        let lost: BTreeSet<TaskId> = tidied.lost.iter().copied().collect();
        assert!(must.is_subset(&lost) && lost.is_subset(&may), "{lost:?} instead of {must:?} to {may:?}");
        for id in &lost {
            self.shadow.lose(*id, now);
        }
        if lost.is_empty() {
            assert_eq!(tidied.next, self.shadow.next());
        }
        self.touched.extend(self.shadow.lives.keys());
    }

    async fn forget(&mut self, task: usize) {
        let Some(id) = nth_newest(&self.submissions, task).map(|new| new.id) else { return };
        let ended = self.shadow.lives.get(&id).is_some_and(|life| life.task.status.is_terminal());
        let forgotten = self.either().forget(&[id]).await.expect("it answers");
        assert_eq!(forgotten, u64::from(ended));
        if ended {
            self.shadow.lives.remove(&id);
            // Its number may come again with a submission that is repeated; its leases mean nothing then.
            self.leases.retain(|(_, lease)| lease.task != id);
        }
    }

    async fn restart(&mut self) {
        self.store.close().await;
        self.store = self.fixture.open(self.options.clone()).await.expect("the store opens again");
        let own = self.shadow.leases().filter(|lease| self.never_runs_out(lease.owner));
        self.left_behind = own.map(remuda_core::Lease::reference).collect();
        // A file gives everybody time to renew; nothing else may have changed.
        for life in self.shadow.lives.values_mut() {
            if let Some(lease) = &mut life.lease {
                let actual = self.store.lease(lease.task).await.expect("it answers").expect("it is held");
                if !self.fixture.is_shared() {
                    assert!(
                        actual.until >= lease.until.min(self.clock.now()),
                        "time was taken from a holder"
                    );
                    lease.until = actual.until;
                }
            }
        }
        self.touched.extend(self.shadow.lives.keys());
    }
}
