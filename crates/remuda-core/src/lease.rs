//! The right to work on a task, for a while.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{AttemptNo, Fence, OwnerId, Policy, Status, Task, TaskId, TaskInput, Timestamp, WorkerId};

/// How far a running task is. A note on the lease, not a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Inputs go to the worker; nothing was sent to ComfyUI's queue yet.
    #[default]
    Placing,
    /// In ComfyUI's queue, or on its way there, behind another prompt of ours.
    Ahead,
    /// In ComfyUI's queue, or on its way there.
    Submitted,
    /// ComfyUI works on it.
    Rendering,
    /// It is done, and its files are on their way to the file store.
    Collecting,
}

impl Phase {
    /// The name used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Placing => "placing",
            Self::Ahead => "ahead",
            Self::Submitted => "submitted",
            Self::Rendering => "rendering",
            Self::Collecting => "collecting",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Placing, Self::Ahead, Self::Submitted, Self::Rendering, Self::Collecting]
            .into_iter()
            .find(|phase| phase.as_str() == text)
            .ok_or_else(|| format!("unknown phase {text:?}"))
    }
}

/// How much of a task is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Of the whole, 0 to 1.
    pub fraction: f64,
}

/// Names one lease: every write of a runner carries it, and with an old fence it changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseRef {
    /// Which task.
    pub task: TaskId,
    /// Under which owner's number.
    pub fence: Fence,
}

/// The right of one owner to work on one task, until it is not renewed any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Which task.
    pub task: TaskId,
    /// The number of this owner.
    pub fence: Fence,
    /// The attempt under way.
    pub attempt: AttemptNo,
    /// Who holds it.
    pub owner: OwnerId,
    /// Where the task runs.
    pub worker: WorkerId,
    /// The id of the prompt at ComfyUI.
    pub prompt_id: Uuid,
    /// When others may take it over, unless it is renewed.
    pub until: Timestamp,
    /// How far it is.
    pub phase: Phase,
    /// How much is done, 0 to 1.
    pub progress: f64,
    /// When ComfyUI began to work on it.
    pub rendering_since: Option<Timestamp>,
    /// Where live frames of it can be had: the base URL of a gateway.
    pub gateway: Option<String>,
    /// An idle worker could start it sooner than the one in whose queue it waits: give it back.
    pub wanted: bool,
}

impl Lease {
    /// Its name.
    pub fn reference(&self) -> LeaseRef {
        LeaseRef { task: self.task, fence: self.fence }
    }

    /// Its holder says how far it is, and has it for another while. `progress` is the part that is done, 0 to 1. What ComfyUI
    /// works on is not wanted elsewhere any more.
    ///
    /// A store that renews many with one statement says the same there.
    pub fn renew(&mut self, now: Timestamp, policy: &Policy, phase: Phase, progress: f64) {
        self.until = now.checked_add(policy.lease).unwrap_or(Timestamp::MAX);
        self.phase = phase;
        self.progress = progress;
        if phase == Phase::Rendering {
            self.rendering_since.get_or_insert(now);
        }
        self.wanted &= phase < Phase::Rendering;
    }

    /// Whether a process that drives a worker takes over the attempt under way: one of its own from before it was started,
    /// which it does not know of, or one of another whose lease ran out.
    pub fn is_for(&self, owner: OwnerId, worker: &WorkerId, known: bool, ran_out: bool) -> bool {
        self.worker == *worker && if self.owner == owner { !known } else { ran_out }
    }
}

/// What the word of somebody who says that he holds a lease is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// He holds it.
    Holds,
    /// He held it last, and has said so before: the task runs no more.
    Held,
    /// It is somebody else's by now, or never was his.
    Fenced,
}

impl Standing {
    /// Of an owner who names a lease. `had`: who holds the task, or had it last.
    pub fn of(task: &Task, had: Option<OwnerId>, owner: OwnerId, lease: LeaseRef) -> Self {
        if task.id != lease.task || task.fence != lease.fence || had != Some(owner) {
            Self::Fenced
        } else if task.status == Status::Running {
            Self::Holds
        } else {
            Self::Held
        }
    }
}

/// What a runner gets: a task with its input and a lease on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The task as it is now.
    pub task: Task,
    /// What to run.
    pub input: TaskInput,
    /// The right to run it. Its prompt id is durable: it may be sent.
    pub lease: Lease,
    /// Whether the attempt was under way before: look at ComfyUI before sending anything.
    pub adopted: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::NewTask;
    use crate::transition::{self, Claimer, Ending};

    fn running() -> (Task, Lease) {
        let new = NewTask::new(RawValue::from_string("{}".to_owned()).unwrap());
        let (mut task, _) = transition::submit(&new, Timestamp::UNIX_EPOCH, 0, 1);
        let by = Claimer {
            owner: OwnerId(Uuid::from_u128(1)),
            worker: WorkerId::new("w").unwrap(),
            gateway: None,
            ahead: false,
        };
        let claimed =
            transition::claim(&mut task, Timestamp::UNIX_EPOCH, &Policy::default(), &by, Uuid::nil());
        (task, claimed.unwrap().0)
    }

    #[test]
    fn only_who_holds_a_lease_or_held_it_last_is_heard() {
        let (mut task, lease) = running();
        let (mine, other) = (lease.owner, OwnerId(Uuid::from_u128(2)));
        let of = |task: &Task, had, owner| Standing::of(task, had, owner, lease.reference());
        assert_eq!(of(&task, Some(mine), mine), Standing::Holds);
        for (had, owner) in [(Some(mine), other), (Some(other), mine), (None, mine)] {
            assert_eq!(of(&task, had, owner), Standing::Fenced);
        }
        let old = LeaseRef { fence: Fence(0), ..lease.reference() };
        assert_eq!(Standing::of(&task, Some(mine), mine, old), Standing::Fenced);
        let foreign = LeaseRef { task: TaskId::new(), ..lease.reference() };
        assert_eq!(Standing::of(&task, Some(mine), mine, foreign), Standing::Fenced);
        transition::end(&mut task, Timestamp::UNIX_EPOCH, &Policy::default(), Ending::Cancelled, 0.0);
        assert_eq!(of(&task, Some(mine), mine), Standing::Held);
        assert_eq!(of(&task, Some(mine), other), Standing::Fenced);
    }

    #[test]
    fn a_renewed_lease_knows_since_when_it_renders_and_is_then_not_wanted() {
        let (policy, mut lease) = (Policy::default(), running().1);
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        lease.wanted = true;
        lease.renew(at(10), &policy, Phase::Submitted, 0.0);
        assert_eq!((lease.wanted, lease.rendering_since), (true, None));
        assert_eq!(lease.until, at(10).checked_add(policy.lease).unwrap());
        lease.renew(at(20), &policy, Phase::Rendering, 0.25);
        lease.renew(at(30), &policy, Phase::Rendering, 0.5);
        assert_eq!((lease.wanted, lease.rendering_since), (false, Some(at(20))));
        lease.renew(at(40), &policy, Phase::Collecting, 1.0);
        assert_eq!(
            (lease.phase, lease.progress, lease.rendering_since),
            (Phase::Collecting, 1.0, Some(at(20)))
        );
        assert!(!lease.wanted);
        lease.renew(Timestamp::MAX, &policy, Phase::Collecting, 1.0);
        assert_eq!(lease.until, Timestamp::MAX);
    }

    #[test]
    fn what_is_taken_over_is_ones_own_or_ran_out() {
        let (_, lease) = running();
        let (mine, other) = (lease.owner, OwnerId(Uuid::from_u128(2)));
        let worker = WorkerId::new("v").unwrap();
        // By whom, known, ran out.
        for (owner, known, ran_out, taken) in [
            (mine, false, false, true),
            (mine, true, false, false),
            (mine, true, true, false),
            (other, false, true, true),
            (other, false, false, false),
        ] {
            assert_eq!(
                lease.is_for(owner, &lease.worker, known, ran_out),
                taken,
                "{owner} {known} {ran_out}"
            );
            assert!(!lease.is_for(owner, &worker, known, ran_out), "it runs elsewhere");
        }
    }
}
