//! The contract of the queue.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::transition::Ending;
use remuda_core::{
    Attempt, Claim, Dialect, Fence, Harm, Harmed, Installation, KeyId, KeyRecord, Lane, LaneId, Lease,
    LeaseRef, NewTask, OwnerId, Requirements, Sha256, Task, TaskEvent, TaskId, TaskInput, Tenant, Version,
    Worker, WorkerId, WorkerSpec,
};
use tokio::sync::broadcast;

use crate::{
    Acquired, AdoptRequest, Asset, BeatReply, BeatRequest, Change, ClaimRequest, Counts, Descriptions,
    Document, DocumentInfo, EndReply, FeedEnds, FeedPage, FeedPlace, Hide, ListQuery, Lookup, OriginPage,
    OriginQuery, Page, Position, Registrant, Result, Submitted, Tidied,
};

/// How many bytes the data of events has that are read at once: when they are reached, the rest is read next.
pub const EVENTS_TEXT: usize = 256 << 10;

/// How many bytes the failures of attempts have that are read at once.
pub(crate) const ATTEMPTS_TEXT: usize = 1 << 20;

/// The durable queue.
///
/// A method that returned `Ok` is durable. After [`crate::Error::Unavailable`] it is not known whether a write was
/// done; every write may be repeated as it was: `submit` by its task id, writes of runners by their fence.
/// Futures may be dropped at any moment; what was claimed for a caller that is gone is given back.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Which installation this is. Made when the store was made.
    async fn installation(&self) -> Result<Installation>;

    /// Whether it answers: a read that touches the disk or the server.
    async fn ping(&self) -> Result<()>;

    // --- Tasks -----------------------------------------------------------------------------------------------

    /// Takes a task in. When an idle worker waits for it, it is claimed in the same commit.
    async fn submit(&self, new: NewTask) -> Result<Submitted>;

    /// The task that a submission under this idempotency key made, and the hash of its request. What is known before
    /// needs no other check.
    async fn submitted(&self, tenant: &Tenant, key: &str) -> Result<Option<(Sha256, TaskId)>>;

    /// A task of a tenant, by the key of its submission or else by its id, and what it runs if that is wanted: all in one
    /// look.
    async fn look_up(&self, lookup: Lookup) -> Result<Option<(Task, Option<TaskInput>)>>;

    /// A task without its input.
    async fn task(&self, id: TaskId) -> Result<Option<Task>>;

    /// How many bytes [`Store::input`] would read, found out without reading them.
    async fn input_size(&self, id: TaskId) -> Result<Option<u64>>;

    /// What a task runs.
    async fn input(&self, id: TaskId) -> Result<Option<TaskInput>>;

    /// The last attempts of a task, at most so many, first to last, and fewer if their failures have much text. They are
    /// numbered from 1: the last one is [`Task::attempt`].
    async fn attempts(&self, id: TaskId, limit: u32) -> Result<Vec<Attempt>>;

    /// The lease on a task, while it runs.
    async fn lease(&self, id: TaskId) -> Result<Option<Lease>>;

    /// What happened to a task after its event `after`, oldest first: at most so many events, and no more after
    /// [`EVENTS_TEXT`] bytes of data.
    async fn events(&self, id: TaskId, after: Version, limit: u32) -> Result<Vec<TaskEvent>>;

    /// What happened to tasks after a place of the feed, of one tenant or of all, in the order of the commits. Nothing is skipped:
    /// what may still be committed before something else is not shown until it is. [`crate::Error::Gone`] when what follows
    /// the place is not kept any more.
    async fn feed(&self, tenant: Option<&Tenant>, after: FeedPlace, limit: u32) -> Result<FeedPage>;

    /// Where the feed begins and ends.
    async fn feed_ends(&self) -> Result<FeedEnds>;

    /// Tasks, newest first. Does not scan: its cost grows with the page, not with the number of tasks.
    async fn list(&self, query: &ListQuery) -> Result<Page>;

    /// Tasks that came through a dialect, those that are hidden left out. What is counted or skipped is read from an index.
    async fn list_origin(&self, query: &OriginQuery) -> Result<OriginPage>;

    /// How many tasks of a dialect have not ended, of one client or of all.
    async fn unfinished(&self, tenant: &Tenant, dialect: Dialect, client: Option<&str>) -> Result<i64>;

    /// Takes ended tasks out of a dialect's lists. How many it took.
    async fn hide(&self, tenant: &Tenant, dialect: Dialect, which: &Hide) -> Result<u64>;

    /// How many tasks are before this one, while it is queued.
    async fn position(&self, id: TaskId) -> Result<Option<Position>>;

    /// How many tasks are in which state, of one tenant or of all. From counters, not by counting.
    async fn counts(&self, tenant: Option<&Tenant>) -> Result<Counts>;

    /// Asks for the end of a task: the task comes back cancelled if it waited, running if its runner must stop it
    /// first. A finished one is [`crate::Error::Finished`].
    async fn cancel(&self, id: TaskId) -> Result<Task>;

    /// Lets a scheduled or delayed task run as soon as possible.
    async fn hasten(&self, id: TaskId) -> Result<Task>;

    // --- Runners ---------------------------------------------------------------------------------------------

    /// The next task for a worker, under a new attempt, lease and prompt id, all durable. Waits up to the request's
    /// `wait` for one. [`crate::Error::Fenced`] when the worker is not the caller's any more.
    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>>;

    /// Renews leases and workers, also those that had run out and that nobody took; then waits for news of them.
    async fn beat(&self, request: BeatRequest) -> Result<BeatReply>;

    /// An attempt ended. Only its owner can say so, and only with the current fence; the same report again gives the same
    /// answer.
    async fn end(&self, owner: OwnerId, lease: LeaseRef, ending: Ending) -> Result<EndReply>;

    /// A task goes back before ComfyUI began, without blame. `learnt`: what it needs and the worker lacks,
    /// in addition to what was known. Only its owner can give it back.
    async fn give_back(
        &self,
        owner: OwnerId,
        lease: LeaseRef,
        learnt: Option<Requirements>,
    ) -> Result<EndReply>;

    /// Takes over the attempts under way on a worker that the caller holds: those of its own from before a restart,
    /// and those of others whose leases ran out. Not all at once, if their inputs are large: whoever wants all of them asks
    /// again, with those that came among the known ones, until none comes. What was not taken yet stays as it is.
    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>>;

    /// Our own work on a task's graph brought a process down or to a standstill. The incident is counted, once however often
    /// it is told; with the second one the task fails with the class `harmful`, wherever it is, and its lease goes. An ended
    /// task stays as it is. With an owner and a fence only the holder of that lease is heard, others are
    /// [`crate::Error::Fenced`]. A task that is not there counts nothing.
    async fn note_harm(&self, task: TaskId, holder: Option<(OwnerId, Fence)>, harm: Harm) -> Result<Harmed>;

    /// All leases on a worker: the prompts of ours that may be in its queue.
    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>>;

    /// The same for a process that holds the worker. [`crate::Error::Fenced`] when `owner` does not.
    async fn leases_for(&self, owner: OwnerId, worker: &WorkerId) -> Result<Vec<Lease>>;

    // --- Workers ---------------------------------------------------------------------------------------------

    /// Registers a worker and takes its lease, if it is free, the caller's own, or run out.
    async fn acquire_worker(&self, spec: WorkerSpec, owner: OwnerId) -> Result<Acquired>;

    /// The same for a process elsewhere. [`crate::Error::Taken`] when the name is not that key's,
    /// [`crate::Error::TooMany`] when the key has as many workers as it may.
    async fn register_worker(&self, spec: WorkerSpec, owner: OwnerId, by: Registrant) -> Result<Acquired>;

    /// Whether this owner is a process elsewhere that held leases or workers before keys were part of owners, and is now
    /// known by this key. The first key that shows it within `grace` of the upgrade has it, if it is older than that; the
    /// processes of the installation are never taken.
    async fn inherit(&self, owner: OwnerId, key: KeyId, grace: Duration) -> Result<bool>;

    /// Lets go of a worker, so that another process can have it at once. Only its owner can.
    async fn release_worker(&self, owner: OwnerId, id: &WorkerId, fence: Fence) -> Result<()>;

    /// Forgets a worker that nobody holds.
    async fn forget_worker(&self, id: &WorkerId) -> Result<()>;

    /// All workers, by name, as they are when this is asked or later. Those who ask at the same time share one read.
    async fn workers(&self) -> Result<Arc<Vec<Worker>>>;

    /// The keys that workers were registered with. Those that the installation drives itself are not among them.
    async fn registrants(&self) -> Result<HashMap<WorkerId, KeyId>>;

    /// Keeps an `object_info` under its hash.
    async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()>;

    /// The same for a process elsewhere. What the key brought before and nobody uses makes room;
    /// [`crate::Error::TooMany`] when that is not enough.
    async fn bring_object_info(
        &self,
        hash: Sha256,
        json: &str,
        key: KeyId,
        bounds: Descriptions,
    ) -> Result<()>;

    /// Removes what no worker uses and nobody has brought for so long. How many it removed.
    async fn forget_object_info(&self, age: Duration) -> Result<u64>;

    /// An `object_info` by its hash.
    async fn object_info(&self, hash: Sha256) -> Result<Option<String>>;

    /// What a lane asks for, if it is one of a task that has not ended.
    async fn requires(&self, lane: &LaneId) -> Result<Option<Requirements>>;

    /// The lanes of tasks that have not ended.
    async fn lanes(&self) -> Result<Vec<Lane>>;

    // --- Leader, keys, assets --------------------------------------------------------------------------------

    /// Becomes or stays the one process that does `what`, for `ttl`. `None`: another one is.
    async fn lead(&self, what: &str, holder: OwnerId, ttl: Duration) -> Result<Option<Fence>>;

    /// Steps down.
    async fn resign(&self, what: &str, holder: OwnerId) -> Result<()>;

    /// Keeps a new key.
    async fn add_key(&self, key: KeyRecord) -> Result<()>;

    /// All keys, also revoked ones, oldest first.
    async fn keys(&self) -> Result<Vec<KeyRecord>>;

    /// Makes a key useless from now on.
    async fn revoke_key(&self, id: KeyId) -> Result<KeyRecord>;

    /// Keeps what is known of an uploaded file.
    async fn add_asset(&self, asset: Asset) -> Result<()>;

    /// An uploaded file of a tenant, by its content.
    async fn asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<Option<Asset>>;

    /// The newest uploaded file of a tenant with this name.
    async fn asset_named(&self, tenant: &Tenant, filename: &str) -> Result<Option<Asset>>;

    /// The newest uploaded file of a tenant under each name, by name; at most `limit`.
    async fn assets(&self, tenant: &Tenant, limit: u32) -> Result<Vec<Asset>>;

    /// A document of a tenant.
    async fn document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<Option<Document>>;

    /// Writes a document; its times are the store's. Without `replace` an existing one stays, and the answer is `None`.
    async fn put_document(
        &self,
        tenant: &Tenant,
        space: &str,
        path: &str,
        bytes: Vec<u8>,
        replace: bool,
    ) -> Result<Option<DocumentInfo>>;

    /// The documents of a collection whose paths begin so, by path.
    async fn documents(&self, tenant: &Tenant, space: &str, prefix: &str) -> Result<Vec<DocumentInfo>>;

    /// Removes a document; whether there was one.
    async fn delete_document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<bool>;

    // --- Housekeeping ----------------------------------------------------------------------------------------

    /// Releases tasks whose moment has come, loses those whose process is gone, expires those whose deadline
    /// passed. Any process may do it at any time.
    async fn tidy(&self) -> Result<Tidied>;

    /// Ended tasks whose earlier or discarded attempts may have left files, oldest first.
    async fn unswept(&self, limit: u32) -> Result<Vec<Task>>;

    /// Those files are gone.
    async fn swept(&self, tasks: &[TaskId]) -> Result<()>;

    /// Tasks that ended longer ago than `age`, oldest first: their files go first, then they are forgotten.
    async fn outdated(&self, age: Duration, limit: u32) -> Result<Vec<TaskId>>;

    /// Removes what happened longer ago than `age` from the feed. How many rows it removed.
    async fn trim_feed(&self, age: Duration) -> Result<u64>;

    /// Removes ended tasks with everything the store has of them.
    async fn forget(&self, tasks: &[TaskId]) -> Result<u64>;

    /// What happens to tasks, from now on, in this process and, where the database can tell, in others. A receiver
    /// that lags must read what it follows again.
    fn changes(&self) -> broadcast::Receiver<Change>;

    /// Finishes what was begun and lets go of everything. Later calls are [`crate::Error::Closed`].
    async fn close(&self);
}
