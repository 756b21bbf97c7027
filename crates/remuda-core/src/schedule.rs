//! Who is next: priority, first come first served, and fairness between tenants, as one sortable number.
//!
//! Every task gets its *rank* when it comes in: a moment in virtual time at which its tenant, given only its fair
//! share, would be served. Lower ranks run first, so a claim is one look at an index, however many tenants there
//! are and however many tasks wait. A tenant's own urgent tasks do not queue behind its less urgent ones, because a
//! submission of priority `p` moves the tenant's clock only for priorities up to `p`. Nobody starves: newcomers'
//! ranks grow with virtual time.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::{LaneId, Priority, TaskId, Timestamp, WorkerId};

/// The cost of a task of a shape that was never seen, in milliseconds of a GPU.
pub const UNKNOWN_COST_MS: i64 = 10_000;

/// How many tasks at the head of the queue are looked at for one that fits a worker's loaded models.
pub const AFFINITY_WINDOW: usize = 32;

/// A task that waits longer than this is not overtaken for the sake of loaded models.
const AFFINITY_PATIENCE: Duration = Duration::from_secs(30);

/// How far back in the queue, in virtual milliseconds, a task may be and still be preferred for its models.
const AFFINITY_REACH_MS: i64 = 60_000;

/// How much of its share a tenant has used up, for each priority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantClock {
    /// The virtual moment at which the tenant's last submission of this priority or a higher one would be done.
    pub vfinish: [i64; Priority::LEVELS],
    /// The tenant's share, in thousandths of the usual one.
    pub weight: i64,
}

impl Default for TenantClock {
    fn default() -> Self {
        Self { vfinish: [0; Priority::LEVELS], weight: 1000 }
    }
}

impl TenantClock {
    /// The rank of a new task, when the task at the head of its lane has rank `head`.
    ///
    /// ```
    /// use remuda_core::{Priority, schedule::TenantClock};
    /// let mut clock = TenantClock::default();
    /// let low = Priority::new(0).unwrap();
    /// for _ in 0..1000 {
    ///     clock.enter(0, low, 10_000);
    /// }
    /// // Its own urgent task does not wait for the thousand.
    /// assert_eq!(clock.enter(0, Priority::new(9).unwrap(), 10_000), 0);
    /// // But the next one of low priority does.
    /// assert_eq!(clock.enter(0, low, 10_000), 10_010_000);
    /// ```
    pub fn enter(&mut self, head: i64, priority: Priority, cost_ms: i64) -> i64 {
        let level = usize::from(priority.get());
        let rank = head.max(self.vfinish[level]);
        let step = cost_ms.max(1).saturating_mul(1000) / self.weight.max(1);
        for vfinish in &mut self.vfinish[..=level] {
            *vfinish = (*vfinish).max(head).saturating_add(step.max(1));
        }
        rank
    }
}

/// What is believed of the cost of a shape after another measurement.
///
/// ```
/// use remuda_core::schedule::learn_cost;
/// assert_eq!(learn_cost(None, 4_000), 4_000);
/// assert_eq!(learn_cost(Some(4_000), 8_000), 5_000);
/// ```
pub fn learn_cost(believed: Option<i64>, measured_ms: i64) -> i64 {
    let measured = measured_ms.clamp(1, 24 * 3_600_000);
    believed.map_or(measured, |believed| (3 * believed + measured) / 4)
}

/// A task that could be claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub id: TaskId,
    /// What it needs.
    pub lane: LaneId,
    /// Its place.
    pub rank: i64,
    /// Decides among equal ranks.
    pub priority: Priority,
    /// Which models it uses.
    pub affinity: Option<i64>,
    /// A worker that must not get it now.
    pub avoid: Option<WorkerId>,
    /// Since when it waits.
    pub since: Timestamp,
}

impl Candidate {
    /// The order of the queue.
    pub fn order(&self) -> impl Ord {
        (self.rank, Reverse(self.priority), self.id)
    }
}

/// A worker that wants one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// Who.
    pub worker: WorkerId,
    /// What it can run.
    pub lanes: BTreeSet<LaneId>,
    /// What it has loaded.
    pub loaded: Vec<i64>,
    /// It is busy, and wants the task only if no idle worker does.
    pub ahead: bool,
}

/// Who gets what. `candidates` come in the order of the queue; the answer has, for every want, the index of its
/// candidate. Idle workers choose before busy ones.
pub fn assign<W: Borrow<Want>>(candidates: &[Candidate], wants: &[W], now: Timestamp) -> Vec<Option<usize>> {
    let mut given = vec![None; wants.len()];
    let mut taken = vec![false; candidates.len()];
    let idle = (0..wants.len()).filter(|&i| !wants[i].borrow().ahead);
    let busy = (0..wants.len()).filter(|&i| wants[i].borrow().ahead);
    for i in idle.chain(busy) {
        let pick = choose(candidates, &taken, wants[i].borrow(), now);
        if let Some(index) = pick {
            taken[index] = true;
        }
        given[i] = pick;
    }
    given
}

/// A task that waits in a busy worker's own queue, behind another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ahead {
    /// As if it could be claimed.
    pub candidate: Candidate,
    /// In whose queue it waits.
    pub worker: WorkerId,
    /// It was asked for before, for an idle worker, and is on its way.
    pub wanted: bool,
    /// Somebody asked for its end: it goes nowhere any more.
    pub cancelled: bool,
}

/// The task that an idle worker for whom there is nothing should get from another's queue: the index of one that was asked for
/// before, or else of the first one that it could run. `ahead` comes in the order of the queue; those in `expected` are for
/// other idle workers.
pub fn want_back(ahead: &[Ahead], want: &Want, expected: &BTreeSet<TaskId>) -> Option<usize> {
    let could = |waits: &Ahead| {
        !waits.cancelled
            && waits.worker != want.worker
            && waits.candidate.avoid.as_ref() != Some(&want.worker)
            && want.lanes.contains(&waits.candidate.lane)
            && !expected.contains(&waits.candidate.id)
    };
    let asked = ahead.iter().position(|waits| waits.wanted && could(waits));
    asked.or_else(|| ahead.iter().position(could))
}

/// The worker that a task avoids at this moment.
pub fn avoids(worker: Option<WorkerId>, until: Option<Timestamp>, now: Timestamp) -> Option<WorkerId> {
    worker.filter(|_| until.is_some_and(|until| until > now))
}

fn choose(candidates: &[Candidate], taken: &[bool], want: &Want, now: Timestamp) -> Option<usize> {
    let mut fitting = (0..candidates.len()).filter(|&index| {
        let candidate = &candidates[index];
        !taken[index]
            && want.lanes.contains(&candidate.lane)
            && candidate.avoid.as_ref() != Some(&want.worker)
    });
    let head = fitting.next()?;
    if want.loaded.is_empty() || loaded(want, &candidates[head]) {
        return Some(head);
    }
    let waited = now.duration_since(candidates[head].since);
    if waited.unsigned_abs() > AFFINITY_PATIENCE && waited.is_positive() {
        return Some(head);
    }
    let reach = candidates[head].rank.saturating_add(AFFINITY_REACH_MS);
    let near = fitting
        .take(AFFINITY_WINDOW - 1)
        // A more urgent task is never overtaken for the sake of loaded models.
        .find(|&index| {
            candidates[index].rank <= reach
                && candidates[index].priority >= candidates[head].priority
                && loaded(want, &candidates[index])
        });
    near.or(Some(head))
}

fn loaded(want: &Want, candidate: &Candidate) -> bool {
    candidate.affinity.is_some_and(|affinity| want.loaded.contains(&affinity))
}

#[cfg(test)]
mod tests;
