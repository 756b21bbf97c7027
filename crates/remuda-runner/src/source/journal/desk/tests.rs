//! The desk, with everything that can happen to it in any order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use remuda_core::transition::Ending;
use remuda_core::{Failure, FailureClass, TaskResult};
use remuda_store::{BeatRequest, LeaseBeat};
use serde_json::value::RawValue;

use super::*;
use crate::source::journal::Over;
use crate::source::journal::record::task_of;

fn worker(n: usize) -> WorkerId {
    WorkerId::new(format!("w{n}")).unwrap()
}

fn desk(slots: usize, workers: usize, starts: i64) -> Desk {
    Desk::new("boss".into(), OwnerId(Uuid::from_u128(7)), slots, (0..workers).map(worker), starts)
}

fn job(key: usize, attempt: i32) -> Job {
    let prompt_id = Uuid::from_u128(key as u128 + 1);
    Job {
        key: format!("key{key}"),
        attempt,
        prompt_id,
        second_prompt_id: Uuid::from_u128(((attempt as u128 + 1) << 64) + key as u128 + 1),
        workflow: RawValue::from_string("{}".into()).unwrap(),
        again: attempt > 0,
        timeout_s: None,
        files: Vec::new(),
        folder: None,
        cookie: serde_json::Value::Null,
        sent_as: None,
        refused: None,
        earlier: Vec::new(),
    }
}

fn good() -> Ending {
    Ending::Completed { result: TaskResult::default(), gpu_ms: None }
}

fn bad() -> Ending {
    Ending::Failed { failure: Failure::new(FailureClass::Execution, "no"), partial: None }
}

fn waits(desk: &mut Desk, n: usize, ahead: bool) -> u64 {
    desk.enter(worker(n), ahead, Instant::now())
}

fn take(desk: &mut Desk, number: u64) -> Option<Taken> {
    let taken = desk.take(number, Timestamp::UNIX_EPOCH)?;
    desk.leave(number);
    Some(taken)
}

#[test]
fn no_more_is_asked_for_than_can_be_begun() {
    let mut desk = desk(2, 3, 1);
    assert_eq!(desk.demand(), 0, "nobody waits");
    let claims: Vec<u64> = (0..3).map(|n| waits(&mut desk, n, false)).collect();
    assert_eq!(desk.demand(), 2, "two slots");
    desk.leave(claims[2]);
    let ahead = waits(&mut desk, 2, true);
    let first = job(1, 0);
    let task = task_of(&first);
    assert_eq!(desk.receive(task, first, Instant::now()), Received::New);
    assert_eq!(desk.demand(), 1);
    assert!(take(&mut desk, ahead).is_none(), "idle workers first");
    let taken = take(&mut desk, claims[1]).unwrap();
    assert_eq!(
        (taken.lease.worker.clone(), taken.lease.phase, taken.adopted),
        (worker(1), Phase::Placing, false)
    );
    desk.leave(claims[0]);
    assert_eq!(desk.demand(), 1, "now for one that waits behind another");
    desk.over(task, 0, &Over::Superseded, Timestamp::UNIX_EPOCH);
    assert_eq!(desk.demand(), 1, "one claim waits, whatever is free");
    desk.close("enough");
    assert_eq!(desk.demand(), 0);
}

#[test]
fn a_worker_that_cannot_take_what_waits_asks_for_something_else() {
    let mut desk = desk(2, 2, 1);
    let first = job(1, 0);
    let task = task_of(&first);
    let claim = waits(&mut desk, 0, false);
    desk.receive(task, first, Instant::now());
    let lease = take(&mut desk, claim).unwrap().lease.reference();
    // The other one is busy, or away.
    let lacks = remuda_core::Requirements::default();
    assert_eq!(desk.give_back(lease, Some(&lacks), Instant::now()), Finished::Again);
    let claim = waits(&mut desk, 0, false);
    assert!(take(&mut desk, claim).is_none(), "it is for the other one");
    assert_eq!(desk.demand(), 1, "it is idle, and a slot is free");
    let ahead = waits(&mut desk, 1, true);
    assert_eq!(desk.demand(), 1, "what waits is for the other one");
    assert!(take(&mut desk, ahead).is_some());
}

#[test]
fn nothing_is_asked_for_while_too_many_refusals_are_not_heard() {
    let mut desk = desk(1, 1, 1);
    waits(&mut desk, 0, false);
    let refused = |n: usize| Job { refused: Some(n.into()), ..job(n, 0) };
    for n in 0..REFUSALS {
        assert_eq!(desk.demand(), 1, "{n}");
        assert_eq!(desk.receive(task_of(&refused(n)), refused(n), Instant::now()), Received::Answer);
    }
    assert_eq!(desk.demand(), 0);
    assert_eq!(desk.settle(task_of(&refused(7)), 0, Instant::now()), Settled::Gone);
    assert_eq!(desk.demand(), 1);
}

/// Whoever has the next delivery may have stored the same files already.
#[test]
fn the_files_of_what_ended_badly_after_its_time_are_left_alone() {
    let mut desk = desk(1, 1, 1);
    let claim = waits(&mut desk, 0, false);
    desk.receive(task_of(&job(1, 0)), job(1, 0), Instant::now());
    let lease = take(&mut desk, claim).unwrap().lease.reference();
    desk.over(lease.task, 0, &Over::Superseded, Timestamp::UNIX_EPOCH);
    assert!(!desk.may_discard(lease));
    assert_eq!(desk.end(lease, bad(), Instant::now()), Finished::Forget);
}

#[test]
fn a_job_that_nobody_takes_goes_back() {
    let mut desk = desk(1, 1, 1);
    let now = Instant::now();
    let claim = waits(&mut desk, 0, false);
    let first = job(1, 0);
    let task = task_of(&first);
    desk.receive(task, first, now);
    assert_eq!(desk.strand(now + STRANDED * 2), Some(now + STRANDED * 3), "somebody is about to take it");
    desk.leave(claim);
    assert!(desk.strand(now + STRANDED * 3 - Duration::from_secs(1)).is_some());
    assert_eq!(desk.unsaid(), []);
    assert_eq!(desk.strand(now + STRANDED * 3), None);
    assert_eq!(desk.unsaid(), [task]);
    let (_, ending) = desk.unsent(task).unwrap();
    assert!(matches!(&*ending, JobEnding::CalledOff { retry: true, .. }));
}

#[test]
fn a_holder_is_told_once_at_once_and_then_with_every_beat() {
    let mut desk = desk(1, 1, 1);
    let first = job(1, 0);
    let task = task_of(&first);
    let claim = waits(&mut desk, 0, false);
    desk.receive(task, first, Instant::now());
    let lease = take(&mut desk, claim).unwrap().lease.reference();
    let beat = |desk: &mut Desk, lease| {
        let leases = vec![LeaseBeat { lease, phase: Phase::Rendering, progress: 0.5 }];
        let owner = OwnerId(Uuid::from_u128(7));
        let request = BeatRequest { owner, leases, workers: Vec::new(), wait: Duration::ZERO };
        desk.beat(&request, Timestamp::UNIX_EPOCH, Instant::now())
    };
    let beaten = beat(&mut desk, lease);
    assert_eq!((beaten.news, beaten.began), (false, vec![task]));
    assert!(beat(&mut desk, lease).began.is_empty(), "it is written down once");
    desk.call_off("stop");
    let told = beat(&mut desk, lease);
    assert!(told.news && told.reply.news[0].cancel);
    let told = beat(&mut desk, lease);
    assert!(!told.news && told.reply.news[0].cancel);
    let old = LeaseRef { fence: Fence(1), ..lease };
    let lost = beat(&mut desk, old);
    assert!(lost.news && lost.reply.lost == [old]);
}

#[derive(Debug, Clone)]
enum Step {
    New,
    Again(usize),
    Enter(usize, bool),
    Leave(usize),
    Take(usize),
    End(usize, u8),
    GiveBack(usize, bool),
    Over(usize, u8),
    Look(usize),
    Say(usize),
    Heard(usize),
    Adopt(usize),
    CallOff,
    Killed,
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..6_usize;
    prop_oneof![
        40 => Just(Step::New),
        30 => n.clone().prop_map(Step::Again),
        40 => (n.clone(), any::<bool>()).prop_map(|(n, ahead)| Step::Enter(n, ahead)),
        10 => n.clone().prop_map(Step::Leave),
        60 => n.clone().prop_map(Step::Take),
        40 => (n.clone(), 0..3_u8).prop_map(|(n, how)| Step::End(n, how)),
        20 => (n.clone(), any::<bool>()).prop_map(|(n, lacks)| Step::GiveBack(n, lacks)),
        20 => (n.clone(), 0..3_u8).prop_map(|(n, how)| Step::Over(n, how)),
        50 => n.clone().prop_map(Step::Look),
        40 => n.clone().prop_map(Step::Say),
        40 => n.clone().prop_map(Step::Heard),
        10 => n.prop_map(Step::Adopt),
        10 => Just(Step::Killed),
        1 => Just(Step::CallOff),
    ]
}

/// One of those that there are.
fn pick<T>(n: usize, of: &[T]) -> Option<usize> {
    n.checked_rem(of.len())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prompt {
    Runs,
    Well,
    Bad,
}

/// What really is, beside what the desk thinks.
#[derive(Debug)]
struct World {
    desk: Desk,
    slots: usize,
    workers: usize,
    starts: i64,
    /// The last delivery of every job, and whether the employer has yet to hear of it.
    jobs: Vec<(i32, bool)>,
    claims: Vec<u64>,
    leases: Vec<LeaseRef>,
    /// Reports on their way.
    saying: Vec<(usize, i32)>,
    /// What the ComfyUIs have.
    prompts: BTreeMap<Uuid, (WorkerId, Prompt)>,
    fences: BTreeSet<Fence>,
}

impl World {
    fn new(slots: usize, workers: usize) -> Self {
        Self {
            desk: desk(slots, workers, 1),
            slots,
            workers,
            starts: 1,
            jobs: Vec::new(),
            claims: Vec::new(),
            leases: Vec::new(),
            saying: Vec::new(),
            prompts: BTreeMap::new(),
            fences: BTreeSet::new(),
        }
    }

    fn begin(&mut self, taken: Taken) {
        let prompt = taken.lease.prompt_id;
        assert!(self.fences.insert(taken.lease.fence), "every holder has its own number");
        self.leases.retain(|lease| lease.task != taken.lease.task);
        self.leases.push(taken.lease.reference());
        match self.prompts.get(&prompt) {
            // A process that was killed before it sent it looks and sends; that is the runner's part.
            None => {
                self.prompts.insert(prompt, (taken.lease.worker, Prompt::Runs));
            }
            Some((worker, _)) => {
                assert!(taken.adopted, "a prompt is never sent twice under one id");
                assert_eq!(*worker, taken.lease.worker, "and goes to whoever has it");
            }
        }
    }

    fn settle(&mut self, task: TaskId) {
        if let Some(n) = self.number_of(task) {
            self.jobs[n].1 = false;
        }
    }

    fn number_of(&self, task: TaskId) -> Option<usize> {
        (0..self.jobs.len()).find(|n| task_of(&job(*n, 0)) == task)
    }

    fn act(&mut self, step: &Step) {
        let now = Instant::now();
        match *step {
            Step::New if self.desk.demand() > 0 => {
                let job = job(self.jobs.len(), 0);
                let received = self.desk.receive(task_of(&job), job, now);
                assert_eq!(received, Received::New);
                self.jobs.push((0, true));
            }
            Step::Again(n) if let Some(n) = pick(n, &self.jobs) => {
                self.jobs[n].0 += 1;
                self.jobs[n].1 = true;
                let job = job(n, self.jobs[n].0);
                let received = self.desk.receive(task_of(&job), job, now);
                assert!(!matches!(received, Received::New | Received::Stale), "{received:?}");
            }
            Step::Enter(n, ahead) => {
                let n = n % self.workers;
                self.claims.push(self.desk.enter(worker(n), ahead, now));
            }
            Step::Leave(n) if let Some(n) = pick(n, &self.claims) => {
                self.desk.leave(self.claims.remove(n));
            }
            Step::Take(n) if let Some(n) = pick(n, &self.claims) => {
                if let Some(taken) = self.desk.take(self.claims[n], Timestamp::UNIX_EPOCH) {
                    self.desk.leave(self.claims.remove(n));
                    self.begin(taken);
                }
            }
            Step::End(n, how) if let Some(n) = pick(n, &self.leases) => self.end(n, how, now),
            Step::GiveBack(n, lacks) if let Some(n) = pick(n, &self.leases) => self.give_back(n, lacks, now),
            Step::Over(n, how) if let Some(n) = pick(n, &self.jobs) => self.over(n, how),
            Step::Look(n) if let Some(n) = pick(n, &self.jobs) => self.look(n, now),
            Step::Say(n) if let Some(n) = pick(n, &self.jobs) => {
                let task = task_of(&job(n, 0));
                self.desk.begin_to_say(task);
                self.saying.extend(self.desk.unsent(task).map(|(said, _)| (n, said.attempt)));
            }
            Step::Heard(n) if let Some(n) = pick(n, &self.saying) => {
                let (n, attempt) = self.saying.remove(n);
                let task = task_of(&job(n, 0));
                if self.desk.settle(task, attempt, now) == Settled::Gone {
                    assert_eq!(attempt, self.jobs[n].0, "the last delivery hears it");
                    self.settle(task);
                }
            }
            Step::Adopt(n) => {
                let taken = self.desk.adopt(&worker(n % self.workers), &self.leases, Timestamp::UNIX_EPOCH);
                for taken in taken {
                    assert!(taken.adopted);
                    self.begin(taken);
                }
            }
            Step::CallOff => self.desk.call_off("enough"),
            Step::Killed => self.killed(now),
            _ => {}
        }
    }

    fn end(&mut self, n: usize, how: u8, now: Instant) {
        let lease = self.leases.remove(n);
        let Some((prompt, _)) = self.desk.held(lease) else {
            assert_eq!(self.desk.end(lease, good(), now), ends::Finished::Fenced);
            return;
        };
        let there = self.prompts.get_mut(&prompt).expect("it was sent");
        // What ended before it was adopted ended as it did.
        let (ending, end) = match (how, there.1) {
            (_, Prompt::Well) | (0, Prompt::Runs) => (good(), Prompt::Well),
            (1, _) => (bad(), Prompt::Bad),
            _ => (Ending::Cancelled, Prompt::Bad),
        };
        there.1 = end;
        let finished = self.desk.end(lease, ending.clone(), now);
        match finished {
            Finished::Forget | Finished::Discard | Finished::Left => self.settle(lease.task),
            Finished::Report | Finished::Again => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(self.desk.end(lease, ending, now), Finished::Repeated, "{finished:?}");
    }

    fn give_back(&mut self, n: usize, lacks: bool, now: Instant) {
        let lease = self.leases[n];
        let Some((prompt, _)) = self.desk.held(lease) else { return };
        if self.prompts.get(&prompt).is_none_or(|(_, there)| *there != Prompt::Runs) {
            return;
        }
        self.leases.remove(n);
        self.prompts.remove(&prompt);
        let lacks = lacks.then(remuda_core::Requirements::default);
        match self.desk.give_back(lease, lacks.as_ref(), now) {
            Finished::Forget => self.settle(lease.task),
            Finished::Report | Finished::Again => {}
            other => panic!("{other:?}"),
        }
    }

    fn over(&mut self, n: usize, how: u8) {
        let task = task_of(&job(n, 0));
        let over = match how {
            0 => Over::Unwanted("no".into()),
            10 => Over::Superseded,
            _ => Over::Elsewhere,
        };
        let verdict = self.desk.over(task, self.jobs[n].0, &over, Timestamp::UNIX_EPOCH);
        // Whatever it is, this delivery needs no answer, unless its end was known before.
        if verdict != Verdict::Ignore {
            self.settle(task);
        }
    }

    fn look(&mut self, n: usize, now: Instant) {
        let task = task_of(&job(n, 0));
        let Some(job) = self.desk.job(task) else { return };
        let found = match self.prompts.get(&job.prompt()) {
            None => Found::Nowhere,
            Some((_, Prompt::Bad)) => Found::Bad,
            Some((worker, there)) => {
                let phase = if *there == Prompt::Runs { Phase::Submitted } else { Phase::Rendering };
                Found::At { worker: worker.clone(), phase, attempt: None, prompt: job.prompt() }
            }
        };
        self.desk.located(task, found, now);
    }

    /// The process is killed; the next one has the journal.
    fn killed(&mut self, now: Instant) {
        let tasks: Vec<TaskId> = self.desk.jobs.keys().copied().collect();
        let records: Vec<Record> = tasks.iter().filter_map(|task| self.desk.record(*task)).collect();
        self.starts += 1;
        self.desk = desk(self.slots, self.workers, self.starts);
        self.claims.clear();
        self.leases.clear();
        self.saying.clear();
        for record in records {
            let text = serde_json::to_string(&record).unwrap();
            self.desk.restore(serde_json::from_str(&text).unwrap(), now);
        }
    }

    fn check(&self) {
        for (n, (attempt, owed)) in self.jobs.iter().enumerate() {
            let known = self.desk.job(task_of(&job(n, 0)));
            if *owed {
                let known = known.unwrap_or_else(|| panic!("job {n} is lost"));
                assert_eq!(known.attempt, *attempt, "of job {n} the last delivery counts");
            }
        }
        let used = self.desk.jobs.values().filter(|entry| entry.counts()).count();
        let demand = self.desk.demand();
        assert!(demand == 0 || used + demand <= self.slots, "{used} of {} and {demand} more", self.slots);
        assert!(demand <= self.claims.len());
        let (under_way, ended) = self.desk.counts();
        assert_eq!(under_way + ended, self.desk.jobs.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn no_job_is_lost_and_no_prompt_is_sent_twice(
        slots in 1..4_usize,
        workers in 1..4_usize,
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut world = World::new(slots, workers);
        for step in &steps {
            world.act(step);
            world.check();
        }
        // Everything is done in the end, and everybody is answered.
        world.desk.call_off("the end");
        for _ in 0..200 {
            if world.desk.counts() == (0, 0) {
                break;
            }
            let all = 0..world.jobs.len();
            for n in all.clone() {
                world.act(&Step::Look(n));
                world.check();
            }
            for n in 0..world.workers {
                world.act(&Step::Adopt(n));
            }
            if !world.leases.is_empty() {
                world.act(&Step::End(0, 2));
            }
            for n in all {
                world.act(&Step::Say(n));
                world.act(&Step::Heard(0));
            }
            world.check();
        }
        prop_assert_eq!(world.desk.counts(), (0, 0));
        prop_assert!(world.jobs.iter().all(|(_, owed)| !owed));
    }
}
