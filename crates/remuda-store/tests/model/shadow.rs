//! What the store must hold, worked out by `remuda-core` on a copy in memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use remuda_core::transition::{self, Claimer, Ended, Ending};
use remuda_core::{
    AttemptOutcome, Capabilities, EventKind, Fence, LaneId, Lease, LeaseRef, OwnerId, PendingReason, Policy,
    Requirements, Status, Task, TaskEvent, TaskId, Timestamp, WorkerId,
};
use remuda_store::Counts;

/// One task with all that belongs to it.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) task: Task,
    pub(crate) lease: Option<Lease>,
    /// Kinds of all its events.
    pub(crate) events: Vec<EventKind>,
    /// How each attempt ended.
    pub(crate) attempts: Vec<Option<AttemptOutcome>>,
}

impl Life {
    fn note(&mut self, event: &TaskEvent) {
        assert_eq!(event.n, self.task.version, "core numbers events by version");
        self.events.push(event.kind);
    }

    fn close(&mut self, ended: &Ended) {
        self.note(&ended.event);
        self.lease = None;
        *self.attempts.last_mut().expect("what ends was begun") = Some(ended.outcome);
    }

    pub(crate) fn is_held_by(&self, lease: LeaseRef) -> bool {
        self.lease.as_ref().is_some_and(|held| held.reference() == lease)
    }
}

/// Everything.
#[derive(Debug)]
pub(crate) struct Shadow {
    pub(crate) policy: Policy,
    pub(crate) lives: BTreeMap<TaskId, Life>,
    pub(crate) lanes: BTreeMap<LaneId, Requirements>,
}

impl Shadow {
    pub(crate) fn submitted(&mut self, task: Task, requires: Requirements) {
        self.lanes.insert(task.lane.clone(), requires);
        let life = Life { task, lease: None, events: vec![EventKind::Submitted], attempts: Vec::new() };
        let old = self.lives.insert(life.task.id, life);
        assert!(old.is_none(), "a task was made new twice");
    }

    /// The queue as a worker with these capabilities sees it.
    pub(crate) fn queue(&self, worker: &WorkerId, able: &Capabilities, now: Timestamp) -> Vec<TaskId> {
        let fits = |task: &&Task| {
            let avoids = task.avoid_worker.as_ref() == Some(worker) && task.avoid_until > Some(now);
            task.reason == Some(PendingReason::Queued) && self.lanes[&task.lane].satisfied_by(able) && !avoids
        };
        let mut queue: Vec<&Task> = self.lives.values().map(|life| &life.task).filter(fits).collect();
        queue.sort_by_key(|task| (task.rank, Reverse(task.priority), task.id));
        queue.into_iter().map(|task| task.id).collect()
    }

    pub(crate) fn claim(&mut self, id: TaskId, now: Timestamp, by: &Claimer, prompt_id: uuid::Uuid) {
        let life = self.lives.get_mut(&id).expect("what is claimed was submitted");
        let (lease, attempt, event) =
            transition::claim(&mut life.task, now, &self.policy, by, prompt_id).expect("it was queued");
        assert_eq!(
            usize::try_from(attempt.n),
            Ok(life.attempts.len() + 1),
            "a number of an attempt is reused"
        );
        life.attempts.push(None);
        life.lease = Some(lease);
        life.note(&event);
    }

    pub(crate) fn adopt(&mut self, id: TaskId, now: Timestamp, owner: OwnerId) {
        let life = self.lives.get_mut(&id).expect("what is adopted was submitted");
        let lease = life.lease.as_mut().expect("what is adopted runs");
        let event = transition::adopt(&mut life.task, lease, now, &self.policy, owner, None);
        life.note(&event);
    }

    /// The delay is the store's choice: `actual` is what it made of the task.
    pub(crate) fn end(&mut self, id: TaskId, now: Timestamp, ending: Ending, actual: &Task) -> Ended {
        let life = self.lives.get_mut(&id).expect("what ends was submitted");
        let ended = transition::end(&mut life.task, now, &self.policy, ending, 1.0);
        life.close(&ended);
        if life.task.reason == Some(PendingReason::Retry) {
            let latest = life.task.run_at;
            assert!(now <= actual.run_at && actual.run_at <= latest, "a delay out of its bounds: {actual:?}");
            assert_eq!(actual.avoid_until, Some(actual.run_at + self.policy.avoid));
            life.task.run_at = actual.run_at;
            life.task.avoid_until = actual.avoid_until;
        }
        ended
    }

    pub(crate) fn give_back(&mut self, id: TaskId, now: Timestamp, learnt: Option<&Requirements>) {
        let life = self.lives.get_mut(&id).expect("what goes back was submitted");
        let needs = learnt.map(|learnt| self.lanes[&life.task.lane].clone().and(learnt));
        let ended = transition::give_back(&mut life.task, now, needs.as_ref());
        life.close(&ended);
        if let Some(needs) = needs {
            self.lanes.insert(needs.lane(), needs);
        }
    }

    pub(crate) fn lose(&mut self, id: TaskId, now: Timestamp) {
        let life = self.lives.get_mut(&id).expect("what is lost was submitted");
        let ended = transition::lose(&mut life.task, now, &self.policy);
        life.close(&ended);
    }

    /// Whether it could be cancelled; if not, its status.
    pub(crate) fn cancel(&mut self, id: TaskId, now: Timestamp) -> Result<(), Status> {
        let life = self.lives.get_mut(&id).expect("what is cancelled was submitted");
        match transition::cancel(&mut life.task, now) {
            Ok(Some(event)) => life.note(&event),
            Ok(None) => {}
            Err(transition::NotPossible(status)) => return Err(status),
        }
        Ok(())
    }

    /// What housekeeping releases and expires: how many at least and at most are released, and which expire.
    pub(crate) fn tidy(&mut self, now: Timestamp) -> (std::ops::RangeInclusive<u64>, Vec<TaskId>) {
        let (mut surely, mut perhaps, mut expired) = (0, 0, Vec::new());
        for life in self.lives.values_mut().filter(|life| life.task.status == Status::Pending) {
            let late = life.task.deadline.is_some_and(|deadline| deadline <= now);
            if life.task.run_at <= now && life.task.reason != Some(PendingReason::Queued) {
                transition::release(&mut life.task, now);
                *(if late { &mut perhaps } else { &mut surely }) += 1;
            }
            if late {
                let event = transition::expire(&mut life.task, now).expect("it waits");
                life.note(&event);
                expired.push(life.task.id);
            }
        }
        (surely..=surely + perhaps, expired)
    }

    /// When housekeeping has something to do again.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let waiting =
            self.lives.values().map(|life| &life.task).filter(|task| task.status == Status::Pending);
        let moments = waiting.flat_map(|task| {
            [(task.reason != Some(PendingReason::Queued)).then_some(task.run_at), task.deadline]
        });
        moments.flatten().min()
    }

    pub(crate) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.lives.values().filter_map(|life| life.lease.as_ref())
    }

    pub(crate) fn fence(&self, id: TaskId) -> Option<Fence> {
        self.lives.get(&id).map(|life| life.task.fence)
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for life in self.lives.values() {
            *match life.task.status {
                Status::Pending => &mut counts.pending,
                Status::Running => &mut counts.running,
                Status::Completed => &mut counts.completed,
                Status::Failed => &mut counts.failed,
                Status::Cancelled => &mut counts.cancelled,
            } += 1;
        }
        counts
    }
}
