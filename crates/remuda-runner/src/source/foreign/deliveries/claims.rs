//! Who gets which task.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::{Lease, LeaseRef, Phase, TaskId, Timestamp, WorkerId};
use remuda_store::{BeatReply, BeatRequest, LeaseNews};

use tokio::time::Instant;

use super::{Bound, Deliveries, Entry, LEASE, REFUSALS, STRANDED, State, Waiter, called_off};
use crate::source::foreign::Delivery;

/// An idle worker that has waited this long gets what waits behind a render elsewhere.
const IN_VAIN: Duration = Duration::from_secs(1);

/// A task for a runner.
#[derive(Debug)]
pub(in crate::source::foreign) struct Taken {
    pub(in crate::source::foreign) delivery: Arc<Delivery>,
    pub(in crate::source::foreign) lease: Lease,
    /// It is at ComfyUI already.
    pub(in crate::source::foreign) adopted: bool,
    /// It is to be stopped at once.
    pub(in crate::source::foreign) cancel: bool,
}

/// What a beat brought.
#[derive(Debug, Default)]
pub(in crate::source::foreign) struct Beaten {
    pub(in crate::source::foreign) reply: BeatReply,
    /// Whether somebody should hear it at once.
    pub(in crate::source::foreign) news: bool,
    /// Tasks that ComfyUI began to work on.
    pub(in crate::source::foreign) began: Vec<TaskId>,
}

impl Deliveries {
    /// A claim begins to wait.
    pub(in crate::source::foreign) fn enter(&mut self, worker: WorkerId, ahead: bool, since: Instant) -> u64 {
        let number = self.number();
        self.waiters.insert(number, Waiter { worker, ahead, since });
        number
    }

    /// A claim does not wait any more.
    pub(in crate::source::foreign) fn leave(&mut self, number: u64) {
        self.waiters.remove(&number);
    }

    /// For how many tasks the queue is to be asked.
    ///
    /// Idle workers first: while one waits, nobody asks for a task to queue behind another.
    pub(in crate::source::foreign) fn demand(&self) -> usize {
        let refusals = self.tasks.values().filter(|entry| entry.delivery.refused.is_some()).count();
        if self.closing || refusals >= REFUSALS {
            return 0;
        }
        let used = self.tasks.values().filter(|entry| entry.counts()).count();
        let free = || self.waiters.values().filter(|waiter| !self.is_occupied(&waiter.worker));
        let idle = free().any(|waiter| !waiter.ahead);
        let seats: Vec<&Waiter> = free().filter(|waiter| !idle || !waiter.ahead).collect();
        // What is looked for will take a seat, and what waits, unless nobody who sits there can take it.
        let coming = |entry: &&Entry| match entry.state {
            State::Looking => true,
            State::Waiting => seats.iter().any(|waiter| !entry.avoid.contains(&waiter.worker)),
            State::Bound(_) | State::Ended { .. } => false,
        };
        let coming = self.tasks.values().filter(coming).count();
        self.slots.saturating_sub(used).min(seats.len().saturating_sub(coming))
    }

    /// Whether a worker has a render that was let go of: what is sent there now waits behind it, and its time runs.
    pub(super) fn is_occupied(&self, worker: &WorkerId) -> bool {
        self.let_go.iter().any(|lease| lease.worker == *worker)
    }

    /// The idle workers that wait and could take this task.
    fn idle<'a>(&'a self, except: &'a WorkerId, entry: &'a Entry) -> impl Iterator<Item = &'a Waiter> {
        self.waiters.values().filter(move |waiter| {
            !waiter.ahead
                && waiter.worker != *except
                && !entry.avoid.contains(&waiter.worker)
                && !self.is_occupied(&waiter.worker)
        })
    }

    /// A task for a claim that waits.
    pub(in crate::source::foreign) fn take(&mut self, number: u64, now: Timestamp) -> Option<Taken> {
        let waiter = self.waiters.get(&number)?;
        let (worker, ahead) = (waiter.worker.clone(), waiter.ahead);
        // What was found at this worker, first.
        let found = self
            .tasks
            .iter()
            .filter(|(_, entry)| entry.bound().is_some_and(|bound| bound.worker == worker && !bound.taken));
        if let Some(task) = found.min_by_key(|(_, entry)| entry.order).map(|(task, _)| *task) {
            return self.hand_over(task, now);
        }
        if self.is_occupied(&worker) {
            return None;
        }
        let free = self.tasks.iter().filter(|(_, entry)| {
            matches!(entry.state, State::Waiting)
                && !entry.avoid.contains(&worker)
                && !(ahead && self.idle(&worker, entry).next().is_some())
        });
        let task = free.min_by_key(|(_, entry)| entry.order).map(|(task, _)| *task)?;
        let fence = self.next_fence();
        let phase = if ahead { Phase::Ahead } else { Phase::Placing };
        let bound = Bound {
            worker,
            fence,
            phase,
            progress: 0.0,
            rendering_since: None,
            taken: true,
            told: (false, false),
        };
        let entry = self.tasks.get_mut(&task)?;
        entry.state = State::Bound(bound);
        let entry = self.tasks.get(&task)?;
        let lease = self.lease(task, entry, entry.bound()?, now);
        Some(Taken {
            delivery: Arc::clone(&entry.delivery),
            lease,
            adopted: false,
            cancel: entry.cancel.is_some(),
        })
    }

    /// Gives a task that is bound to a worker to its runner, under a new fence.
    fn hand_over(&mut self, task: TaskId, now: Timestamp) -> Option<Taken> {
        let fence = self.next_fence();
        if let State::Bound(bound) = &mut self.tasks.get_mut(&task)?.state {
            bound.taken = true;
            bound.fence = fence;
            bound.told = (false, false);
        }
        let entry = self.tasks.get(&task)?;
        let lease = self.lease(task, entry, entry.bound()?, now);
        Some(Taken {
            delivery: Arc::clone(&entry.delivery),
            lease,
            adopted: true,
            cancel: entry.cancel.is_some(),
        })
    }

    /// A task that was taken could not be written down: the next claim gets it.
    pub(in crate::source::foreign) fn untake(&mut self, lease: LeaseRef, now: Instant) {
        if let Some(entry) = self.tasks.get_mut(&lease.task)
            && entry.bound().is_some_and(|bound| bound.fence == lease.fence)
        {
            entry.wait(now);
        }
    }

    /// Calls off what no worker has taken for too long. When to look again, if anything waits.
    pub(in crate::source::foreign) fn strand(&mut self, now: Instant) -> Option<Instant> {
        let Self { tasks, waiters, let_go, .. } = self;
        let occupied = |worker: &WorkerId| let_go.iter().any(|lease| lease.worker == *worker);
        let free: Vec<&Waiter> = waiters.values().filter(|waiter| !occupied(&waiter.worker)).collect();
        let mut next = None;
        for entry in tasks.values_mut().filter(|entry| matches!(entry.state, State::Waiting)) {
            let stranded = entry.since + STRANDED;
            if free.iter().any(|waiter| !entry.avoid.contains(&waiter.worker)) {
                // It will be taken in a moment.
                entry.since = now;
            } else if now >= stranded {
                let reason = format!("no ComfyUI could take it for {} s", STRANDED.as_secs());
                entry.state = State::Ended { ending: called_off(reason), lease: None, said: false };
                continue;
            }
            let stranded = entry.since + STRANDED;
            next = Some(next.map_or(stranded, |next: Instant| next.min(stranded)));
        }
        next
    }

    /// Everything at a worker that its runner does not know.
    pub(in crate::source::foreign) fn adopt(
        &mut self,
        worker: &WorkerId,
        known: &[LeaseRef],
        now: Timestamp,
    ) -> Vec<Taken> {
        let at = |(task, entry): (&TaskId, &Entry)| {
            let bound = entry.bound().filter(|bound| bound.worker == *worker)?;
            let lease = LeaseRef { task: *task, fence: bound.fence };
            (!known.contains(&lease)).then_some(*task)
        };
        let tasks: Vec<TaskId> = self.tasks.iter().filter_map(at).collect();
        tasks.into_iter().filter_map(|task| self.hand_over(task, now)).collect()
    }

    /// All leases on a worker. Those that were let go of are somebody else's.
    pub(in crate::source::foreign) fn leases(&self, worker: &WorkerId, now: Timestamp) -> Vec<Lease> {
        let bound = self.tasks.iter().filter_map(|(task, entry)| {
            let bound = entry.bound().filter(|bound| bound.worker == *worker)?;
            Some(self.lease(*task, entry, bound, now))
        });
        let let_go = self.let_go.iter().filter(|lease| lease.worker == *worker && lease.until > now).cloned();
        bound.chain(let_go).collect()
    }

    pub(super) fn lease(&self, task: TaskId, entry: &Entry, bound: &Bound, now: Timestamp) -> Lease {
        Lease {
            task,
            fence: bound.fence,
            attempt: entry.attempt,
            owner: self.owner,
            worker: bound.worker.clone(),
            prompt_id: entry.delivery.prompt(),
            until: now.checked_add(LEASE).unwrap_or(Timestamp::MAX),
            phase: bound.phase,
            progress: bound.progress,
            rendering_since: bound.rendering_since,
            gateway: None,
            wanted: false,
        }
    }

    /// Renews leases, and says what their holders should know.
    pub(in crate::source::foreign) fn beat(
        &mut self,
        request: &BeatRequest,
        now: Timestamp,
        moment: Instant,
    ) -> Beaten {
        let mut beaten = Beaten::default();
        for beat in &request.leases {
            let wanted = beat.phase == Phase::Ahead && self.is_wanted(beat.lease, moment);
            let entry = self.tasks.get_mut(&beat.lease.task);
            let held = entry.and_then(|entry| {
                let cancel = entry.cancel.is_some();
                match &mut entry.state {
                    State::Bound(bound) if bound.fence == beat.lease.fence => Some((cancel, bound)),
                    _ => None,
                }
            });
            let Some((cancel, bound)) = held else {
                beaten.reply.lost.push(beat.lease);
                beaten.news = true;
                continue;
            };
            if beat.phase >= Phase::Rendering && bound.phase < Phase::Rendering {
                beaten.began.push(beat.lease.task);
                bound.rendering_since.get_or_insert(now);
            }
            bound.phase = bound.phase.max(beat.phase);
            bound.progress = beat.progress;
            if cancel || wanted {
                beaten.news |= bound.told != (cancel, wanted);
                beaten.reply.news.push(LeaseNews { lease: beat.lease, cancel, wanted });
            }
            bound.told = (cancel, wanted);
        }
        beaten
    }

    /// Whether an idle worker could begin this task at once, and the queue has nothing else for it.
    fn is_wanted(&self, lease: LeaseRef, now: Instant) -> bool {
        let Some(entry) = self.tasks.get(&lease.task) else { return false };
        let Some(bound) = entry.bound() else { return false };
        let coming = self.tasks.values().any(|entry| matches!(entry.state, State::Waiting));
        let in_vain = |waiter: &Waiter| now.saturating_duration_since(waiter.since) >= IN_VAIN;
        !coming && self.idle(&bound.worker, entry).any(in_vain)
    }
}
