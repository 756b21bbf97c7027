//! What is under way, as values: who may have which task, what is over, and what is still to be said.
//!
//! ```text
//!  receive ─▶ waiting ───────── take ──▶ bound to a worker ── end ──▶ ended ── heard ─▶ gone
//!      │         ▲                            ▲    │                    ▲
//!      └─▶ looking ──── found there ──────────┘    └─ give back ────────┘
//! ```
//!
//! No clock, no file, no task in here.

mod claims;
mod ends;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{AttemptNo, Fence, Lease, LeaseRef, OwnerId, Phase, TaskId, Timestamp, WorkerId};
use tokio::time::Instant;
use uuid::Uuid;

use super::record::{Record, VERSION};
use super::{Delivery, DeliveryEnding};

pub(super) use claims::Taken;
pub(super) use ends::{Finished, Settled, Verdict};

/// How many good ends are remembered, and for how long: the same work may be delivered again.
const REMEMBERED: usize = 256;
const MEMORY: Duration = Duration::from_secs(3600);

/// Leases whose end was reported are remembered, so that a repeated report is known as one.
const REPORTED: usize = 64;

/// While this many refusals wait to be heard, nothing is asked for: each of them took no time, and the next would, too.
const REFUSALS: usize = 256;

/// Renders that were let go of are remembered, so that nobody stops them as nobody's.
const LET_GO: usize = 256;

/// … for this long.
const LET_GO_FOR: Duration = Duration::from_secs(24 * 3600);

/// A task that no worker takes for this long goes back: it may be tried elsewhere.
const STRANDED: Duration = Duration::from_secs(60);

/// Leases do not run out while the journal is locked; this is for readers only.
const LEASE: Duration = Duration::from_secs(3600);

/// Why a task is stopped.
#[derive(Debug, Clone)]
struct Cancel {
    reason: String,
    /// Nobody wants to hear of it.
    unwanted: bool,
    /// Nobody wants its files, either.
    discard: bool,
    /// It was delivered again since.
    renewed: bool,
}

/// A task at a worker.
#[derive(Debug)]
struct Bound {
    worker: WorkerId,
    fence: Fence,
    phase: Phase,
    progress: f64,
    rendering_since: Option<Timestamp>,
    /// A runner has it.
    taken: bool,
    /// What its holder was told: to cancel it, to give it back.
    told: (bool, bool),
}

#[derive(Debug)]
enum State {
    /// It may be somewhere already.
    Looking,
    /// For the next worker.
    Waiting,
    /// At a worker.
    Bound(Bound),
    /// Over, and the queue has not heard it.
    Ended {
        ending: Arc<DeliveryEnding>,
        lease: Option<LeaseRef>,
        /// Somebody is saying it.
        said: bool,
    },
}

#[derive(Debug)]
struct Entry {
    delivery: Arc<Delivery>,
    attempt: AttemptNo,
    /// First come, first served.
    order: u64,
    /// Since when it waits, while it does.
    since: Instant,
    state: State,
    /// Its delivery is over, and the next will come: it does not count against the slots.
    superseded: bool,
    cancel: Option<Cancel>,
    /// Workers that lack something it needs, or gave it back.
    avoid: BTreeSet<WorkerId>,
}

impl Entry {
    fn counts(&self) -> bool {
        !self.superseded && !matches!(self.state, State::Ended { .. })
    }

    fn bound(&self) -> Option<&Bound> {
        match &self.state {
            State::Bound(bound) => Some(bound),
            _ => None,
        }
    }

    /// It is for the next worker.
    fn wait(&mut self, now: Instant) {
        self.state = State::Waiting;
        self.since = now;
    }

    /// A later delivery takes the place of this one. The prompt stays what it is.
    fn deliver(&mut self, delivery: Delivery) {
        self.delivery = Arc::new(Delivery { sent_as: self.delivery.sent_as, ..delivery });
        self.superseded = false;
        if let Some(cancel) = &mut self.cancel {
            cancel.renewed = true;
        }
    }

    /// A prompt of the first id ended badly.
    fn use_second_id(&mut self) {
        let mut delivery = Delivery::clone(&self.delivery);
        delivery.sent_as = Some(delivery.second_prompt_id);
        self.attempt = marked(delivery.attempt);
        self.delivery = Arc::new(delivery);
    }
}

/// The attempt in the mark of a prompt that a delivery sent under its second id.
pub(super) fn marked(delivery: i32) -> AttemptNo {
    delivery.saturating_add(2)
}

/// A good end.
#[derive(Debug)]
struct Remembered {
    task: TaskId,
    prompt: Uuid,
    attempt: AttemptNo,
    ending: Arc<DeliveryEnding>,
    at: Instant,
}

/// What a delivery means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// A new task for the next worker.
    New,
    /// It is to be looked for first.
    Look,
    /// It is under way, or ended, and this delivery gets its end.
    Attached,
    /// Its end is known already, or nothing is taken any more: that is to be said.
    Answer,
    /// A newer delivery of it is under way.
    Stale,
}

/// Where a task was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// At this worker: it goes on, or has ended well.
    At {
        worker: WorkerId,
        phase: Phase,
        /// In the mark on its prompt, if that is known.
        attempt: Option<AttemptNo>,
        /// The id under which it is there.
        prompt: Uuid,
    },
    /// It ended badly.
    Bad,
    /// Nowhere.
    Nowhere,
}

/// A claim that waits.
#[derive(Debug)]
struct Waiter {
    worker: WorkerId,
    ahead: bool,
    since: Instant,
}

/// All tasks of a foreign source, each with its newest delivery.
#[derive(Debug)]
pub(super) struct Deliveries {
    queue: String,
    owner: OwnerId,
    slots: usize,
    /// All workers that there are.
    workers: BTreeSet<WorkerId>,
    tasks: BTreeMap<TaskId, Entry>,
    waiters: BTreeMap<u64, Waiter>,
    /// Numbers deliveries and claims.
    next: u64,
    fence: i64,
    remembered: VecDeque<Remembered>,
    reported: VecDeque<LeaseRef>,
    let_go: VecDeque<Lease>,
    closing: bool,
}

impl Deliveries {
    /// An empty one. `starts` makes its fences greater than those of all processes before.
    pub(super) fn new(
        queue: String,
        owner: OwnerId,
        slots: usize,
        workers: impl IntoIterator<Item = WorkerId>,
        starts: i64,
    ) -> Self {
        Self {
            queue,
            owner,
            slots: slots.max(1),
            workers: workers.into_iter().collect(),
            tasks: BTreeMap::new(),
            waiters: BTreeMap::new(),
            next: 0,
            fence: starts.saturating_mul(1_000_000_000),
            remembered: VecDeque::new(),
            reported: VecDeque::new(),
            let_go: VecDeque::new(),
            closing: false,
        }
    }

    /// The process.
    pub(super) fn owner(&self) -> OwnerId {
        self.owner
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn next_fence(&mut self) -> Fence {
        self.fence += 1;
        Fence(self.fence)
    }

    fn insert(
        &mut self,
        task: TaskId,
        delivery: Arc<Delivery>,
        attempt: AttemptNo,
        state: State,
        since: Instant,
    ) {
        let order = self.number();
        let entry = Entry {
            delivery,
            attempt,
            order,
            since,
            state,
            superseded: false,
            cancel: None,
            avoid: BTreeSet::new(),
        };
        self.tasks.insert(task, entry);
    }

    /// Takes up what the journal has from before. `true`: it is to be looked for.
    pub(super) fn restore(&mut self, record: Record, now: Instant) -> bool {
        let Record { task, worker, attempt, phase, rendering_since, delivery, ending, .. } = record;
        let known = worker.filter(|worker| self.workers.contains(worker));
        let state = match (ending, known) {
            (Some(ending), _) => State::Ended { ending, lease: None, said: false },
            (None, Some(worker)) => State::Bound(Bound {
                worker,
                fence: self.next_fence(),
                phase,
                progress: 0.0,
                rendering_since,
                taken: false,
                told: (false, false),
            }),
            (None, None) => State::Looking,
        };
        let look = matches!(state, State::Looking);
        self.insert(task, delivery, attempt, state, now);
        look
    }

    /// A task was delivered.
    pub(super) fn receive(&mut self, task: TaskId, delivery: Delivery, now: Instant) -> Received {
        if let Some(words) = &delivery.refused
            && !self.tasks.contains_key(&task)
        {
            let ending = Arc::new(DeliveryEnding::Refused(words.clone()));
            self.insert(task, Arc::new(delivery), 1, State::Ended { ending, lease: None, said: false }, now);
            return Received::Answer;
        }
        if let Some(entry) = self.tasks.get_mut(&task) {
            if delivery.attempt < entry.delivery.attempt {
                return Received::Stale;
            }
            let newer = delivery.attempt > entry.delivery.attempt;
            return match &entry.state {
                // The bad end of a delivery before this one is of no interest any more.
                State::Ended { ending, .. } if newer && delivery.refused.is_none() && !ended_well(ending) => {
                    entry.deliver(delivery);
                    entry.cancel = None;
                    entry.state = State::Looking;
                    Received::Look
                }
                _ => {
                    entry.deliver(delivery);
                    Received::Attached
                }
            };
        }
        self.remembered.retain(|good| now.saturating_duration_since(good.at) < MEMORY);
        if let Some(good) = self.remembered.iter().rev().find(|good| good.task == task) {
            let delivery = Delivery { sent_as: Some(good.prompt), ..delivery };
            let state = State::Ended { ending: Arc::clone(&good.ending), lease: None, said: false };
            let attempt = good.attempt;
            self.insert(task, Arc::new(delivery), attempt, state, now);
            return Received::Answer;
        }
        let (state, received) = if self.closing {
            let ending = called_off("the worker is stopping");
            (State::Ended { ending, lease: None, said: false }, Received::Answer)
        } else if delivery.again {
            (State::Looking, Received::Look)
        } else {
            (State::Waiting, Received::New)
        };
        let sent_as = Some(delivery.prompt_id);
        self.insert(task, Arc::new(Delivery { sent_as, ..delivery }), 1, state, now);
        received
    }

    /// A task was looked for. `false`: it is not wanted any more.
    pub(super) fn located(&mut self, task: TaskId, found: Found, now: Instant) -> bool {
        let fence = self.next_fence();
        let Some(entry) = self.tasks.get_mut(&task) else { return false };
        if !matches!(entry.state, State::Looking) {
            return false;
        }
        entry.wait(now);
        match found {
            Found::At { worker, phase, attempt, prompt } => {
                entry.attempt = attempt.unwrap_or(entry.attempt);
                entry.delivery =
                    Arc::new(Delivery { sent_as: Some(prompt), ..Delivery::clone(&entry.delivery) });
                entry.state = State::Bound(Bound {
                    worker,
                    fence,
                    phase,
                    progress: 0.0,
                    rendering_since: None,
                    taken: false,
                    told: (false, false),
                });
            }
            Found::Bad => entry.use_second_id(),
            Found::Nowhere => {}
        }
        true
    }

    /// The newest delivery of a task.
    pub(super) fn delivery(&self, task: TaskId) -> Option<Arc<Delivery>> {
        self.tasks.get(&task).map(|entry| Arc::clone(&entry.delivery))
    }

    /// The prompt and the task of a lease, while it holds.
    pub(super) fn held(&self, lease: LeaseRef) -> Option<(Uuid, Arc<Delivery>)> {
        let entry = self.tasks.get(&lease.task)?;
        let held = entry.bound().is_some_and(|bound| bound.fence == lease.fence);
        held.then(|| (entry.delivery.prompt(), Arc::clone(&entry.delivery)))
    }

    /// Everything that is still to be said, and that nobody says.
    pub(super) fn unsaid(&self) -> Vec<TaskId> {
        let unsaid = |entry: &Entry| matches!(entry.state, State::Ended { said, .. } if !said);
        self.tasks.iter().filter(|(_, entry)| unsaid(entry)).map(|(task, _)| *task).collect()
    }

    /// Everything that is still to be heard.
    pub(super) fn said(&self) -> Vec<TaskId> {
        let ended = |entry: &Entry| matches!(entry.state, State::Ended { .. });
        self.tasks.iter().filter(|(_, entry)| ended(entry)).map(|(task, _)| *task).collect()
    }

    /// Whether a task is not over.
    pub(super) fn is_under_way(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|entry| !matches!(entry.state, State::Ended { .. }))
    }

    /// All tasks that are not over.
    pub(super) fn under_way(&self) -> Vec<TaskId> {
        let under_way = |entry: &Entry| !matches!(entry.state, State::Ended { .. });
        self.tasks.iter().filter(|(_, entry)| under_way(entry)).map(|(task, _)| *task).collect()
    }

    /// How many tasks are under way, and how many ends are still to be heard.
    pub(super) fn counts(&self) -> (usize, usize) {
        let ended = self.tasks.values().filter(|entry| matches!(entry.state, State::Ended { .. })).count();
        (self.tasks.len() - ended, ended)
    }

    /// What the journal should have of a task.
    pub(super) fn record(&self, task: TaskId) -> Option<Record> {
        let entry = self.tasks.get(&task)?;
        let bound = entry.bound();
        let ending = match &entry.state {
            State::Ended { ending, .. } => Some(Arc::clone(ending)),
            _ => None,
        };
        Some(Record {
            version: VERSION,
            queue: self.queue.clone(),
            task,
            worker: bound.map(|bound| bound.worker.clone()),
            attempt: entry.attempt,
            phase: bound.map(|bound| bound.phase).unwrap_or_default(),
            rendering_since: bound.and_then(|bound| bound.rendering_since),
            delivery: Arc::clone(&entry.delivery),
            ending,
        })
    }

    /// Whether a good end of a task is known, for a delivery that is to come.
    pub(super) fn remembers(&mut self, task: TaskId, now: Instant) -> bool {
        self.remembered.retain(|good| now.saturating_duration_since(good.at) < MEMORY);
        self.remembered.iter().any(|good| good.task == task)
    }

    fn remember(&mut self, task: TaskId, entry: &Entry, ending: &Arc<DeliveryEnding>, now: Instant) {
        if !ended_well(ending) {
            return;
        }
        if self.remembered.len() >= REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(Remembered {
            task,
            prompt: entry.delivery.prompt(),
            attempt: entry.attempt,
            ending: Arc::clone(ending),
            at: now,
        });
    }
}

fn ended_well(ending: &DeliveryEnding) -> bool {
    matches!(ending, DeliveryEnding::Ended(Ending::Completed { .. }))
}

fn called_off(reason: impl Into<String>) -> Arc<DeliveryEnding> {
    Arc::new(DeliveryEnding::CalledOff { reason: reason.into(), retry: true })
}
