//! The deliveries, with everything that can happen to them in any order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use remuda_core::transition::Ending;
use remuda_core::{Failure, FailureClass, TaskResult};
use remuda_store::{BeatRequest, LeaseBeat};
use serde_json::value::RawValue;

use super::*;
use crate::source::foreign::Withdrawn;

fn worker(n: usize) -> WorkerId {
    WorkerId::new(format!("w{n}")).unwrap()
}

fn deliveries(slots: usize, workers: usize, starts: i64) -> Deliveries {
    Deliveries::new("a queue".into(), OwnerId(Uuid::from_u128(7)), slots, (0..workers).map(worker), starts)
}

fn delivery(key: usize, attempt: i32) -> Delivery {
    let prompt_id = Uuid::from_u128(key as u128 + 1);
    Delivery {
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

fn waits(all: &mut Deliveries, n: usize, ahead: bool) -> u64 {
    all.enter(worker(n), ahead, Instant::now())
}

fn take(all: &mut Deliveries, number: u64) -> Option<Taken> {
    let taken = all.take(number, Timestamp::UNIX_EPOCH)?;
    all.leave(number);
    Some(taken)
}

#[test]
fn no_more_is_asked_for_than_can_be_begun() {
    let mut all = deliveries(2, 3, 1);
    assert_eq!(all.demand(), 0, "nobody waits");
    let claims: Vec<u64> = (0..3).map(|n| waits(&mut all, n, false)).collect();
    assert_eq!(all.demand(), 2, "two slots");
    all.leave(claims[2]);
    let ahead = waits(&mut all, 2, true);
    let first = delivery(1, 0);
    let task = first.task();
    assert_eq!(all.receive(task, first, Instant::now()), Received::New);
    assert_eq!(all.demand(), 1);
    assert!(take(&mut all, ahead).is_none(), "idle workers first");
    let taken = take(&mut all, claims[1]).unwrap();
    assert_eq!(
        (taken.lease.worker.clone(), taken.lease.phase, taken.adopted),
        (worker(1), Phase::Placing, false)
    );
    all.leave(claims[0]);
    assert_eq!(all.demand(), 1, "now for one that waits behind another");
    all.withdraw(task, 0, &Withdrawn::Superseded, Timestamp::UNIX_EPOCH);
    assert_eq!(all.demand(), 1, "one claim waits, whatever is free");
    all.close("enough");
    assert_eq!(all.demand(), 0);
}

#[test]
fn a_worker_that_cannot_take_what_waits_asks_for_something_else() {
    let mut all = deliveries(2, 2, 1);
    let first = delivery(1, 0);
    let task = first.task();
    let claim = waits(&mut all, 0, false);
    all.receive(task, first, Instant::now());
    let lease = take(&mut all, claim).unwrap().lease.reference();
    // The other one is busy, or away.
    let lacks = remuda_core::Requirements::default();
    assert_eq!(all.give_back(lease, Some(&lacks), Instant::now()), Finished::Again);
    let claim = waits(&mut all, 0, false);
    assert!(take(&mut all, claim).is_none(), "it is for the other one");
    assert_eq!(all.demand(), 1, "it is idle, and a slot is free");
    let ahead = waits(&mut all, 1, true);
    assert_eq!(all.demand(), 1, "what waits is for the other one");
    assert!(take(&mut all, ahead).is_some());
}

#[test]
fn nothing_is_asked_for_while_too_many_refusals_are_not_heard() {
    let mut all = deliveries(1, 1, 1);
    waits(&mut all, 0, false);
    let refused = |n: usize| Delivery { refused: Some(n.into()), ..delivery(n, 0) };
    for n in 0..REFUSALS {
        assert_eq!(all.demand(), 1, "{n}");
        assert_eq!(all.receive(refused(n).task(), refused(n), Instant::now()), Received::Answer);
    }
    assert_eq!(all.demand(), 0);
    assert_eq!(all.settle(refused(7).task(), 0, Instant::now()), Settled::Gone);
    assert_eq!(all.demand(), 1);
}

/// Whoever has the next delivery may have stored the same files already.
#[test]
fn the_files_of_what_ended_badly_after_its_time_are_left_alone() {
    let mut all = deliveries(1, 1, 1);
    let claim = waits(&mut all, 0, false);
    all.receive(delivery(1, 0).task(), delivery(1, 0), Instant::now());
    let lease = take(&mut all, claim).unwrap().lease.reference();
    all.withdraw(lease.task, 0, &Withdrawn::Superseded, Timestamp::UNIX_EPOCH);
    assert!(!all.may_discard(lease));
    assert_eq!(all.end(lease, bad(), Instant::now()), Finished::Forget);
}

#[test]
fn a_task_that_nobody_takes_goes_back() {
    let mut all = deliveries(1, 1, 1);
    let now = Instant::now();
    let claim = waits(&mut all, 0, false);
    let first = delivery(1, 0);
    let task = first.task();
    all.receive(task, first, now);
    assert_eq!(all.strand(now + STRANDED * 2), Some(now + STRANDED * 3), "somebody is about to take it");
    all.leave(claim);
    assert!(all.strand(now + STRANDED * 3 - Duration::from_secs(1)).is_some());
    assert_eq!(all.unsaid(), []);
    assert_eq!(all.strand(now + STRANDED * 3), None);
    assert_eq!(all.unsaid(), [task]);
    let (_, ending) = all.unsent(task).unwrap();
    assert!(matches!(&*ending, DeliveryEnding::CalledOff { retry: true, .. }));
}

#[test]
fn a_holder_is_told_once_at_once_and_then_with_every_beat() {
    let mut all = deliveries(1, 1, 1);
    let first = delivery(1, 0);
    let task = first.task();
    let claim = waits(&mut all, 0, false);
    all.receive(task, first, Instant::now());
    let lease = take(&mut all, claim).unwrap().lease.reference();
    let beat = |all: &mut Deliveries, lease| {
        let leases = vec![LeaseBeat { lease, phase: Phase::Rendering, progress: 0.5 }];
        let owner = OwnerId(Uuid::from_u128(7));
        let request = BeatRequest { owner, leases, workers: Vec::new(), wait: Duration::ZERO };
        all.beat(&request, Timestamp::UNIX_EPOCH, Instant::now())
    };
    let beaten = beat(&mut all, lease);
    assert_eq!((beaten.news, beaten.began), (false, vec![task]));
    assert!(beat(&mut all, lease).began.is_empty(), "it is written down once");
    all.call_off("stop");
    let told = beat(&mut all, lease);
    assert!(told.news && told.reply.news[0].cancel);
    let told = beat(&mut all, lease);
    assert!(!told.news && told.reply.news[0].cancel);
    let old = LeaseRef { fence: Fence(1), ..lease };
    let lost = beat(&mut all, old);
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
    Withdrawn(usize, u8),
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
        20 => (n.clone(), 0..3_u8).prop_map(|(n, how)| Step::Withdrawn(n, how)),
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

/// What really is, beside what is thought of it.
#[derive(Debug)]
struct World {
    all: Deliveries,
    slots: usize,
    workers: usize,
    starts: i64,
    /// The last delivery of every task, and whether the queue has yet to hear of it.
    given: Vec<(i32, bool)>,
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
            all: deliveries(slots, workers, 1),
            slots,
            workers,
            starts: 1,
            given: Vec::new(),
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
            self.given[n].1 = false;
        }
    }

    fn number_of(&self, task: TaskId) -> Option<usize> {
        (0..self.given.len()).find(|n| delivery(*n, 0).task() == task)
    }

    fn act(&mut self, step: &Step) {
        let now = Instant::now();
        match *step {
            Step::New if self.all.demand() > 0 => {
                let delivery = delivery(self.given.len(), 0);
                let received = self.all.receive(delivery.task(), delivery, now);
                assert_eq!(received, Received::New);
                self.given.push((0, true));
            }
            Step::Again(n) if let Some(n) = pick(n, &self.given) => {
                self.given[n].0 += 1;
                self.given[n].1 = true;
                let delivery = delivery(n, self.given[n].0);
                let received = self.all.receive(delivery.task(), delivery, now);
                assert!(!matches!(received, Received::New | Received::Stale), "{received:?}");
            }
            Step::Enter(n, ahead) => {
                let n = n % self.workers;
                self.claims.push(self.all.enter(worker(n), ahead, now));
            }
            Step::Leave(n) if let Some(n) = pick(n, &self.claims) => {
                self.all.leave(self.claims.remove(n));
            }
            Step::Take(n) if let Some(n) = pick(n, &self.claims) => {
                if let Some(taken) = self.all.take(self.claims[n], Timestamp::UNIX_EPOCH) {
                    self.all.leave(self.claims.remove(n));
                    self.begin(taken);
                }
            }
            Step::End(n, how) if let Some(n) = pick(n, &self.leases) => self.end(n, how, now),
            Step::GiveBack(n, lacks) if let Some(n) = pick(n, &self.leases) => self.give_back(n, lacks, now),
            Step::Withdrawn(n, how) if let Some(n) = pick(n, &self.given) => self.withdraw(n, how),
            Step::Look(n) if let Some(n) = pick(n, &self.given) => self.look(n, now),
            Step::Say(n) if let Some(n) = pick(n, &self.given) => {
                let task = delivery(n, 0).task();
                self.all.begin_to_say(task);
                self.saying.extend(self.all.unsent(task).map(|(said, _)| (n, said.attempt)));
            }
            Step::Heard(n) if let Some(n) = pick(n, &self.saying) => {
                let (n, attempt) = self.saying.remove(n);
                let task = delivery(n, 0).task();
                if self.all.settle(task, attempt, now) == Settled::Gone {
                    assert_eq!(attempt, self.given[n].0, "the last delivery hears it");
                    self.settle(task);
                }
            }
            Step::Adopt(n) => {
                let taken = self.all.adopt(&worker(n % self.workers), &self.leases, Timestamp::UNIX_EPOCH);
                for taken in taken {
                    assert!(taken.adopted);
                    self.begin(taken);
                }
            }
            Step::CallOff => self.all.call_off("enough"),
            Step::Killed => self.killed(now),
            _ => {}
        }
    }

    fn end(&mut self, n: usize, how: u8, now: Instant) {
        let lease = self.leases.remove(n);
        let Some((prompt, _)) = self.all.held(lease) else {
            assert_eq!(self.all.end(lease, good(), now), ends::Finished::Fenced);
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
        let finished = self.all.end(lease, ending.clone(), now);
        match finished {
            Finished::Forget | Finished::Discard | Finished::Left => self.settle(lease.task),
            Finished::Report | Finished::Again => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(self.all.end(lease, ending, now), Finished::Repeated, "{finished:?}");
    }

    fn give_back(&mut self, n: usize, lacks: bool, now: Instant) {
        let lease = self.leases[n];
        let Some((prompt, _)) = self.all.held(lease) else { return };
        if self.prompts.get(&prompt).is_none_or(|(_, there)| *there != Prompt::Runs) {
            return;
        }
        self.leases.remove(n);
        self.prompts.remove(&prompt);
        let lacks = lacks.then(remuda_core::Requirements::default);
        match self.all.give_back(lease, lacks.as_ref(), now) {
            Finished::Forget => self.settle(lease.task),
            Finished::Report | Finished::Again => {}
            other => panic!("{other:?}"),
        }
    }

    fn withdraw(&mut self, n: usize, how: u8) {
        let task = delivery(n, 0).task();
        let over = match how {
            0 => Withdrawn::Unwanted("no".into()),
            10 => Withdrawn::Superseded,
            _ => Withdrawn::Elsewhere,
        };
        let verdict = self.all.withdraw(task, self.given[n].0, &over, Timestamp::UNIX_EPOCH);
        // Whatever it is, this delivery needs no answer, unless its end was known before.
        if verdict != Verdict::Ignore {
            self.settle(task);
        }
    }

    fn look(&mut self, n: usize, now: Instant) {
        let task = delivery(n, 0).task();
        let Some(delivery) = self.all.delivery(task) else { return };
        let found = match self.prompts.get(&delivery.prompt()) {
            None => Found::Nowhere,
            Some((_, Prompt::Bad)) => Found::Bad,
            Some((worker, there)) => {
                let phase = if *there == Prompt::Runs { Phase::Submitted } else { Phase::Rendering };
                Found::At { worker: worker.clone(), phase, attempt: None, prompt: delivery.prompt() }
            }
        };
        self.all.located(task, found, now);
    }

    /// The process is killed; the next one has the journal.
    fn killed(&mut self, now: Instant) {
        let tasks: Vec<TaskId> = self.all.tasks.keys().copied().collect();
        let records: Vec<Record> = tasks.iter().filter_map(|task| self.all.record(*task)).collect();
        self.starts += 1;
        self.all = deliveries(self.slots, self.workers, self.starts);
        self.claims.clear();
        self.leases.clear();
        self.saying.clear();
        for record in records {
            let text = serde_json::to_string(&record).unwrap();
            self.all.restore(serde_json::from_str(&text).unwrap(), now);
        }
    }

    fn check(&self) {
        for (n, (attempt, owed)) in self.given.iter().enumerate() {
            let known = self.all.delivery(delivery(n, 0).task());
            if *owed {
                let known = known.unwrap_or_else(|| panic!("task {n} is lost"));
                assert_eq!(known.attempt, *attempt, "of task {n} the last delivery counts");
            }
        }
        let used = self.all.tasks.values().filter(|entry| entry.counts()).count();
        let demand = self.all.demand();
        assert!(demand == 0 || used + demand <= self.slots, "{used} of {} and {demand} more", self.slots);
        assert!(demand <= self.claims.len());
        let (under_way, ended) = self.all.counts();
        assert_eq!(under_way + ended, self.all.tasks.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn no_task_is_lost_and_no_prompt_is_sent_twice(
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
        world.all.call_off("the end");
        for _ in 0..200 {
            if world.all.counts() == (0, 0) {
                break;
            }
            let all = 0..world.given.len();
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
        prop_assert_eq!(world.all.counts(), (0, 0));
        prop_assert!(world.given.iter().all(|(_, owed)| !owed));
    }
}
