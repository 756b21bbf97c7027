//! What goes into the store and comes out of it.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::acquire::{Allowance, Excess};
use remuda_core::{
    Capabilities, Dialect, Fence, KeyId, LeaseRef, OwnerId, Phase, Sha256, Status, Task, TaskId, TaskInput,
    Tenant, Timestamp, Version, Worker, WorkerId, WorkerReport,
};
use serde::{Deserialize, Serialize};

use crate::Error;

/// What a submission made.
#[derive(Debug, Clone, PartialEq)]
pub enum Submitted {
    /// A new task. With an idle worker waiting it may already be running: the claim is part of the same commit.
    New(Task),
    /// The task that the same submission, by its id or its idempotency key, made before.
    Before(Task),
}

impl Submitted {
    /// The task, new or old.
    pub fn task(&self) -> &Task {
        match self {
            Self::New(task) | Self::Before(task) => task,
        }
    }
}

/// Which tasks to list: newest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ListQuery {
    /// Of this tenant only.
    pub tenant: Option<Tenant>,
    /// In this state only.
    pub status: Option<Status>,
    /// With this workflow id only.
    pub workflow_id: Option<String>,
    /// Older than this one only: the last of the page before.
    pub before: Option<TaskId>,
    /// At most this many.
    pub limit: u32,
}

/// In which order tasks of a dialect are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OriginOrder {
    /// As they came, oldest first.
    #[default]
    OldestFirst,
    /// As they came, newest first.
    NewestFirst,
    /// As they ended, the first first. Only ended ones.
    FirstEnded,
    /// As they ended, the last first. Only ended ones.
    LastEnded,
}

/// Which tasks of a dialect to list. Hidden ones are never listed.
#[derive(Debug, Clone, PartialEq)]
pub struct OriginQuery {
    /// Whose.
    pub tenant: Tenant,
    /// Through which door they came.
    pub dialect: Dialect,
    /// Of this client only.
    pub client: Option<String>,
    /// In one of these states.
    pub statuses: Vec<Status>,
    /// With this workflow id only.
    pub workflow_id: Option<String>,
    /// In which order.
    pub order: OriginOrder,
    /// Without the first ones, this many.
    pub offset: u32,
    /// At most this many.
    pub limit: u32,
}

impl OriginQuery {
    /// The states that can be listed in this order, each once.
    pub(crate) fn wanted(&self) -> Vec<Status> {
        let ended = matches!(self.order, OriginOrder::FirstEnded | OriginOrder::LastEnded);
        let wanted = |status: &Status| self.statuses.contains(status) && (!ended || status.is_terminal());
        Status::ALL.into_iter().filter(wanted).collect()
    }
}

/// Some of the tasks that a query is about.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OriginPage {
    /// In the order that was asked for, without inputs, errors, results and metadata.
    pub tasks: Vec<Task>,
    /// How many there are in all.
    pub total: i64,
}

/// Which ended tasks are taken out of a dialect's lists. Their records stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hide {
    /// All that have ended by now.
    Ended,
    /// These, if they have ended.
    Tasks(Vec<TaskId>),
}

/// A small file that a client keeps with us: a setting, a saved workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Whose.
    pub tenant: Tenant,
    /// Of which collection.
    pub space: String,
    /// Its name there; slashes are part of it.
    pub path: String,
    /// What is in it.
    pub bytes: Vec<u8>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last written.
    pub modified_at: Timestamp,
}

/// A document without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentInfo {
    /// Its name in its collection.
    pub path: String,
    /// In bytes.
    pub size: i64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last written.
    pub modified_at: Timestamp,
}

/// A page of tasks ends, after its first, before their errors, results and metadata have more text than this together.
pub(crate) const MOST_TEXT: usize = 8 << 20;

/// An adoption ends, after its first task, before the inputs have more bytes than this together.
const MOST_ADOPTED: u64 = 8 << 20;

/// What an adopted task takes beside its input, at least.
const BESIDE_INPUT: u64 = 4 << 10;

/// How much one adoption takes over: what a process left behind may be far more than anybody can hold at once.
#[derive(Debug, Default)]
pub(crate) struct Armful(u64);

impl Armful {
    /// Whether a task with an input of this many bytes is still taken.
    pub(crate) fn takes(&mut self, input: u64) -> bool {
        let first = self.0 == 0;
        self.0 = self.0.saturating_add(input.saturating_add(BESIDE_INPUT));
        first || self.0 <= MOST_ADOPTED
    }
}

/// A page of tasks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    /// Newest first, without inputs. Fewer than asked for, if they are large.
    pub tasks: Vec<Task>,
    /// Whether there are older ones.
    pub more: bool,
}

/// How many tasks would be claimed before this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// How many, in the lanes that its worker would look at.
    pub ahead: i64,
    /// Whether it was counted; beyond 1,000 it is estimated.
    pub exact: bool,
}

/// How many tasks are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Waiting, for whatever reason.
    pub pending: i64,
    /// Under way.
    pub running: i64,
    /// Ended well and kept.
    pub completed: i64,
    /// Ended badly and kept.
    pub failed: i64,
    /// Ended on request and kept.
    pub cancelled: i64,
}

/// A worker asks for a task.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The process that asks.
    pub owner: OwnerId,
    /// The worker it asks for …
    pub worker: WorkerId,
    /// … which it must hold under this number.
    pub worker_fence: Fence,
    /// What the worker can do: which lanes it may be served from.
    pub capabilities: Arc<Capabilities>,
    /// The affinities of the models it has loaded.
    pub loaded: Vec<i64>,
    /// The worker is busy: a task goes to it only when no idle worker asks.
    pub ahead: bool,
    /// Where live frames of the worker can be had.
    pub gateway: Option<String>,
    /// How long to wait for one.
    pub wait: Duration,
}

/// News of one lease, from its holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeaseBeat {
    /// Which.
    pub lease: LeaseRef,
    /// How far the task is.
    pub phase: Phase,
    /// How much is done, 0 to 1.
    pub progress: f64,
}

impl LeaseBeat {
    /// How much is done, as it is kept: a number from 0 to 1, whatever was said.
    pub(crate) fn share(&self) -> f64 {
        if self.progress.is_nan() { 0.0 } else { self.progress.clamp(0.0, 1.0) }
    }
}

/// News of one worker, from its holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerBeat {
    /// Which.
    pub id: WorkerId,
    /// The number under which it is held.
    pub fence: Fence,
    /// How it is.
    pub report: WorkerReport,
}

/// A process renews what it holds, and asks for news of it.
#[derive(Debug, Clone)]
pub struct BeatRequest {
    /// The process.
    pub owner: OwnerId,
    /// Its leases.
    pub leases: Vec<LeaseBeat>,
    /// Its workers.
    pub workers: Vec<WorkerBeat>,
    /// How long to wait for news of a lease when there are none. The renewal itself does not wait.
    pub wait: Duration,
}

/// What the holder of a lease should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseNews {
    /// Which.
    pub lease: LeaseRef,
    /// Stop it: its task was cancelled.
    pub cancel: bool,
    /// Give it back, if ComfyUI has not begun: an idle worker could start it sooner.
    pub wanted: bool,
}

/// What became of a renewal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeatReply {
    /// Leases that were renewed and have news.
    pub news: Vec<LeaseNews>,
    /// Leases that are somebody else's by now: stop watching, and touch nothing at ComfyUI.
    pub lost: Vec<LeaseRef>,
    /// Workers that are somebody else's by now.
    pub lost_workers: Vec<WorkerId>,
}

/// The holder of a worker takes over what runs on it.
#[derive(Debug, Clone)]
pub struct AdoptRequest {
    /// The process.
    pub owner: OwnerId,
    /// Its worker …
    pub worker: WorkerId,
    /// … held under this number.
    pub worker_fence: Fence,
    /// Where live frames of the worker can be had.
    pub gateway: Option<String>,
    /// What the process already holds and follows.
    pub known: Vec<LeaseRef>,
}

/// What the end of an attempt did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndReply {
    /// The task's state after it: pending when there will be another attempt.
    pub status: Status,
    /// The result was not used, because the task was cancelled before or is tried again: its files must go.
    pub discarded: bool,
    /// The same report had come through before.
    pub repeated: bool,
}

impl EndReply {
    /// To a report that came through before and left the task like this. `discarded`: it brings a result, and none was kept.
    pub(crate) fn again(status: Status, discarded: bool) -> Self {
        Self { status, discarded, repeated: true }
    }
}

/// Who registers a worker from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registrant {
    /// The key it showed; all zeros before there are keys.
    pub key: KeyId,
    /// Whose key that is.
    pub tenant: Tenant,
    /// How many workers one key may have.
    pub most: u32,
    /// How many bytes of labels, names and endpoints they may have together.
    pub bytes: u64,
}

impl Registrant {
    /// What [`crate::Error::TooMany`] says when those are too many.
    pub const LABELS: &str = "labels";

    /// What its key may have.
    pub(crate) fn allowance(&self) -> Allowance {
        Allowance { workers: self.most.into(), bytes: self.bytes }
    }
}

impl From<Excess> for Error {
    fn from(excess: Excess) -> Self {
        let what = match excess {
            Excess::Workers => "workers",
            Excess::Labels => Registrant::LABELS,
        };
        Self::TooMany { what }
    }
}

/// How much one key may bring of what ComfyUIs say of their nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptions {
    /// How many.
    pub most: u32,
    /// How long they may be together, in bytes.
    pub bytes: u64,
}

/// Whether a worker can be driven.
#[derive(Debug, Clone, PartialEq)]
pub enum Acquired {
    /// It is the caller's, under the fence in it.
    Yes(Worker),
    /// Another process drives it.
    HeldBy(Worker),
}

/// An uploaded file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asset {
    /// Whose.
    pub tenant: Tenant,
    /// Its content, and its name in requests.
    pub sha256: Sha256,
    /// Where it is in the file store.
    pub key: String,
    /// Its name when it was uploaded.
    pub filename: String,
    /// Media type.
    pub mime: String,
    /// In bytes.
    pub size: i64,
    /// When it came, or came again.
    pub created_at: Timestamp,
}

/// What one look for tasks that read an uploaded file found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssetUse {
    /// This task reads it, and has not ended.
    By(TaskId),
    /// None up to this one does: look on after it.
    After(TaskId),
    /// None does.
    Unused,
}

/// Something happened to a task. Best effort: who must not miss anything reads events.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Which.
    pub task: TaskId,
    /// Its version by now.
    pub version: Version,
    /// The task as it was committed, if it ended with that in this process and is small.
    pub ended: Option<Arc<Task>>,
}

impl Change {
    /// What is said of this task once it is committed so.
    pub(crate) fn of(task: &Task) -> Self {
        // What is large is read by whoever needs it, when it is their turn: here it would be copied by the writer, and kept for
        // everybody who hears of it.
        let told = task.status.is_terminal() && task.text_bytes() <= SMALL;
        let ended = told.then(|| Arc::new(task.clone()));
        Self { task: task.id, version: task.version, ended }
    }
}

/// From more bytes than this on, a task is large.
pub(crate) const SMALL: usize = 64 << 10;

/// A task as it may be kept for long: with everything if it is small.
#[derive(Debug, Clone, PartialEq)]
pub struct Glance {
    /// The task. Of a large one, without its error, its result and its metadata.
    pub task: Task,
    /// Whether that is everything.
    pub whole: bool,
}

impl Glance {
    /// What is kept of a task.
    pub fn of(task: Task) -> Self {
        let whole = task.text_bytes() <= SMALL;
        Self { task: if whole { task } else { task.briefly() }, whole }
    }

    pub(crate) fn whole(task: Task) -> Self {
        Self { task, whole: true }
    }

    pub(crate) fn brief(task: Task) -> Self {
        Self { task, whole: false }
    }
}

/// How a task is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// Whose it is.
    pub tenant: Tenant,
    /// The idempotency key of its submission …
    pub key: Option<String>,
    /// … or, when there is none under that, its id.
    pub id: Option<TaskId>,
    /// Whether what it runs is wanted, too.
    pub input: bool,
}

/// What a look finds that reads nothing long.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every look finds something small, and none is kept")]
pub enum LookedUp {
    /// All of it; `None`: there is no such task.
    Small(Option<(Task, Option<TaskInput>)>),
    /// It is large. Whoever wants it should have room for it before it is read.
    Large {
        /// Which task it is.
        task: TaskId,
        /// About how many bytes it has.
        bytes: u64,
    },
}

/// What housekeeping did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tidied {
    /// Scheduled or delayed tasks whose moment had come.
    pub released: u64,
    /// Running tasks whose process did not report any more and that nobody adopted.
    pub lost: Vec<TaskId>,
    /// Waiting tasks whose deadline had passed.
    pub expired: u64,
    /// When there will be something to release or to expire next.
    pub next: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_armful_has_at_least_one_task() {
        let taken = |sizes: &[u64]| {
            let mut armful = Armful::default();
            sizes.iter().take_while(|size| armful.takes(**size)).count()
        };
        assert_eq!(taken(&[u64::MAX, 0]), 1);
        assert_eq!(taken(&[15 << 20, 15 << 20]), 1);
        assert_eq!(taken(&[3 << 20; 9]), 2);
        assert_eq!(taken(&[1000; 9]), 9);
        assert_eq!(taken(&[0; 10_000]), 2048);
    }
}
