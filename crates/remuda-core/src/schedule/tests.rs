//! The queue's promises, as simulations of a fleet, and the choice of a task for a worker.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

/// A fleet fed from one lane. Times are milliseconds.
struct Fleet {
    now: i64,
    /// When each GPU is free again.
    gpus: Vec<i64>,
    clocks: BTreeMap<&'static str, TenantClock>,
    /// (rank, urgency, number): the order of the queue.
    queue: BTreeMap<(i64, Reverse<u8>, usize), Waiting>,
    /// The largest rank claimed so far.
    v: i64,
    count: usize,
    dice: u64,
    /// By tenant and priority: how long each task waited, in the order of their starts.
    waits: Vec<(&'static str, u8, i64)>,
}

struct Waiting {
    tenant: &'static str,
    priority: u8,
    since: i64,
    takes: i64,
}

impl Fleet {
    fn new(gpus: usize) -> Self {
        Self {
            now: 0,
            gpus: vec![0; gpus],
            clocks: BTreeMap::new(),
            queue: BTreeMap::new(),
            v: 0,
            count: 0,
            dice: 1,
            waits: Vec::new(),
        }
    }

    /// 6 to 46 seconds, 26 on average, the same in every run.
    fn duration(&mut self) -> i64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        6_000 + i64::try_from((self.dice >> 33) % 40_000).unwrap()
    }

    fn submit(&mut self, tenant: &'static str, priority: u8) {
        let takes = self.duration();
        let head = self.queue.first_key_value().map_or(self.v, |((rank, ..), _)| *rank);
        let level = Priority::new(priority.into()).unwrap();
        let rank = self.clocks.entry(tenant).or_default().enter(head, level, takes);
        self.count += 1;
        let waiting = Waiting { tenant, priority, since: self.now, takes };
        self.queue.insert((rank, Reverse(priority), self.count), waiting);
        self.start();
    }

    fn start(&mut self) {
        while let Some(gpu) = self.gpus.iter().position(|&free_at| free_at <= self.now) {
            let Some(((rank, ..), task)) = self.queue.pop_first() else { return };
            self.v = self.v.max(rank);
            self.gpus[gpu] = self.now + task.takes;
            self.waits.push((task.tenant, task.priority, self.now - task.since));
        }
    }

    fn run_until(&mut self, end: i64) {
        while let Some(&next) = self.gpus.iter().filter(|&&at| at > self.now && at <= end).min() {
            self.now = next;
            self.start();
        }
        self.now = end;
    }

    /// In seconds, for the tasks of this tenant and priority that were started.
    fn waits(&self, tenant: &str, priority: u8) -> Vec<i64> {
        let mine = self.waits.iter().filter(|wait| (wait.0, wait.1) == (tenant, priority));
        mine.map(|wait| wait.2 / 1000).collect()
    }
}

#[test]
fn an_urgent_task_does_not_wait_for_its_tenants_thousand_others() {
    let mut fleet = Fleet::new(4);
    (0..1000).for_each(|_| fleet.submit("a", 0));
    fleet.run_until(600_000);
    fleet.submit("a", 9);
    fleet.run_until(700_000);
    let waits = fleet.waits("a", 9);
    assert!(matches!(waits[..], [0..=46]), "the next free GPU was due, waited {waits:?} s");
}

#[test]
fn a_light_tenant_does_not_wait_for_anothers_dump() {
    let mut fleet = Fleet::new(4);
    (0..1000).for_each(|_| fleet.submit("dump", 5));
    for second in 0..20 {
        fleet.run_until(300_000 + second * 30_000);
        fleet.submit("light", 5);
    }
    fleet.run_until(3_000_000);
    let waits = fleet.waits("light", 5);
    assert_eq!(waits.len(), 20);
    let mean = waits.iter().sum::<i64>() / 20;
    assert!(mean <= 30, "waited {mean} s on average: {waits:?}");
    // A dump that comes first-in-first-out would take 6,500 s; the guests cost it their own time and no more.
    fleet.run_until(100_000_000);
    assert_eq!(fleet.waits("dump", 5).len(), 1000);
}

#[test]
fn a_task_of_the_lowest_priority_is_not_starved_by_urgent_ones() {
    let mut fleet = Fleet::new(4);
    // Four GPUs do a task in 6.5 s; one every 5.2 s is 125 % of that.
    let mut urgent = (0..).map(|n| n * 5_200);
    for at in urgent.by_ref().take(400) {
        fleet.run_until(at);
        fleet.submit("a", 9);
    }
    fleet.submit("a", 0);
    for at in urgent.take(2_000) {
        fleet.run_until(at);
        fleet.submit("a", 9);
    }
    let waits = fleet.waits("a", 0);
    assert!(matches!(waits[..], [0..=1500]), "under a load that never ends it waited {waits:?} s");
}

#[test]
fn shares_follow_weights() {
    let mut fleet = Fleet::new(1);
    fleet.clocks.insert("double", TenantClock { weight: 2000, ..TenantClock::default() });
    for _ in 0..300 {
        fleet.submit("single", 5);
        fleet.submit("double", 5);
    }
    fleet.run_until(4_000_000);
    let (single, double) = (fleet.waits("single", 5).len(), fleet.waits("double", 5).len());
    assert!((15..=25).contains(&(double * 10 / single)), "{double} to {single}");
}

proptest! {
    #[test]
    fn ranks_of_a_tenant_rise_within_a_priority_and_never_lie_before_the_head(
        tasks in proptest::collection::vec((0..10_i64, 0..100_000_i64, 0..5_000_i64), 1..100),
    ) {
        let mut clock = TenantClock::default();
        let mut last = [i64::MIN; Priority::LEVELS];
        let mut head = 0;
        for (priority, cost, moved) in tasks {
            head += moved;
            let level = Priority::new(priority).unwrap();
            let rank = clock.enter(head, level, cost);
            prop_assert!(rank >= head);
            for (other, &before) in last.iter().enumerate() {
                // First come, first served: no later task passes one of at least its own priority.
                prop_assert!(other < usize::from(level.get()) || rank > before);
            }
            last[usize::from(level.get())] = rank;
            prop_assert!(clock.vfinish.is_sorted_by(|low, high| low >= high));
        }
    }
}

#[test]
fn absurd_costs_and_weights_neither_panic_nor_turn_the_queue_around() {
    let mut clock = TenantClock { weight: 0, ..TenantClock::default() };
    assert_eq!(clock.enter(5, Priority::default(), i64::MAX), 5);
    assert_eq!(clock.enter(5, Priority::default(), -3), i64::MAX);
    assert_eq!(clock.enter(5, Priority::default(), 1), i64::MAX);
    assert_eq!(learn_cost(None, -5), 1);
    assert_eq!(learn_cost(Some(100), i64::MAX), (300 + 24 * 3_600_000) / 4);
}

fn moment(seconds: i64) -> Timestamp {
    Timestamp::new(1_800_000_000 + seconds, 0).unwrap()
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).unwrap()
}

fn candidate(n: u128, rank: i64, affinity: Option<i64>) -> Candidate {
    Candidate {
        id: TaskId(Uuid::from_u128(n)),
        lane: LaneId::any(),
        rank,
        priority: Priority::default(),
        affinity,
        avoid: None,
        since: moment(0),
    }
}

fn want(name: &str, loaded: &[i64], ahead: bool) -> Want {
    Want { worker: worker(name), lanes: [LaneId::any()].into(), loaded: loaded.to_vec(), ahead }
}

#[test]
fn idle_workers_choose_before_busy_ones_whoever_asked_first() {
    let tasks = [candidate(1, 0, None), candidate(2, 1, None)];
    let wants = [want("busy", &[], true), want("idle", &[], false), want("late", &[], false)];
    assert_eq!(assign(&tasks, &wants, moment(0)), [None, Some(0), Some(1)]);
}

#[test]
fn a_worker_gets_only_what_it_can_run_and_what_does_not_avoid_it() {
    let other = LaneId::from_stored("other".to_owned());
    let tasks = [
        Candidate { lane: other.clone(), ..candidate(1, 0, None) },
        Candidate { avoid: Some(worker("w")), ..candidate(2, 1, None) },
        candidate(3, 2, None),
    ];
    assert_eq!(assign(&tasks, &[want("w", &[], false)], moment(0)), [Some(2)]);
    assert_eq!(assign(&tasks, &[want("x", &[], false)], moment(0)), [Some(1)]);
    let able = Want { lanes: [LaneId::any(), other].into(), ..want("w", &[], false) };
    assert_eq!(assign(&tasks, &[able], moment(0)), [Some(0)]);
}

#[test]
fn loaded_models_are_preferred_within_reach_patience_and_priority() {
    let fits = candidate(2, 1_000, Some(7));
    let pick = |head: Candidate, other: &Candidate, now| {
        assign(&[head, other.clone()], &[want("w", &[7], false)], now)[0]
    };
    let head = || candidate(1, 0, Some(3));
    assert_eq!(pick(head(), &fits, moment(5)), Some(1), "its models are loaded");
    assert_eq!(pick(head(), &fits, moment(31)), Some(0), "the head waited long enough");
    assert_eq!(pick(head(), &Candidate { rank: 60_001, ..fits.clone() }, moment(5)), Some(0), "too far back");
    let urgent = Candidate { priority: Priority::new(9).unwrap(), ..head() };
    assert_eq!(pick(urgent, &fits, moment(5)), Some(0), "an urgent head is not overtaken");
    // A clock set back makes nobody patient for ever, and nobody impatient.
    assert_eq!(pick(head(), &fits, moment(-500)), Some(1));
    let mut far: Vec<Candidate> = (0..32).map(|n| candidate(n, 0, None)).collect();
    far.push(candidate(99, 0, Some(7)));
    assert_eq!(assign(&far, &[want("w", &[7], false)], moment(0)), [Some(0)], "beyond the window");
}

#[test]
fn an_idle_worker_wants_back_what_waits_elsewhere() {
    let (now, lane) = (Timestamp::UNIX_EPOCH, LaneId::any());
    let worker = |name: &str| WorkerId::new(name).unwrap();
    let ahead = |rank: i64, at: &str, wanted: bool| Ahead {
        candidate: Candidate {
            id: TaskId(Uuid::from_u128(rank.unsigned_abs().into())),
            lane: lane.clone(),
            rank,
            priority: Priority::default(),
            affinity: None,
            avoid: None,
            since: now,
        },
        worker: worker(at),
        wanted,
        cancelled: false,
    };
    let want =
        Want { worker: worker("idle"), lanes: [lane.clone()].into(), loaded: Vec::new(), ahead: false };
    let none = BTreeSet::new();
    let mut all =
        vec![ahead(1, "idle", false), ahead(2, "a", false), ahead(3, "b", false), ahead(4, "c", true)];
    assert_eq!(want_back(&all, &want, &none), Some(3), "one is on its way");
    let expected = [all[3].candidate.id].into();
    assert_eq!(want_back(&all, &want, &expected), Some(1), "that one is for another worker");
    all[1].cancelled = true;
    assert_eq!(want_back(&all, &want, &expected), Some(2), "that one ends");
    all[1].cancelled = false;
    all[1].candidate.avoid = Some(worker("idle"));
    assert_eq!(want_back(&all, &want, &expected), Some(2));
    all[2].candidate.lane = LaneId::from_stored("other".to_owned());
    assert_eq!(
        want_back(&all, &want, &expected),
        None,
        "not its own, nothing that avoids it or that it cannot run"
    );
    let later = now.checked_add(Duration::from_secs(1)).unwrap();
    assert_eq!(avoids(Some(worker("a")), Some(later), now), Some(worker("a")));
    assert_eq!(avoids(Some(worker("a")), Some(now), now), None);
    assert_eq!(avoids(None, Some(later), now), None);
}
