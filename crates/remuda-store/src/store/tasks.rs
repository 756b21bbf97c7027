//! Taking tasks in, reading and ending them.

use std::fmt;

use async_trait::async_trait;
use remuda_core::{
    Attempt, Dialect, Lease, NewTask, Sha256, Task, TaskEvent, TaskId, TaskInput, Tenant, Version,
};

use crate::{
    Counts, FeedEnds, FeedPage, FeedPlace, Glance, Hide, ListQuery, LookedUp, Lookup, OriginPage,
    OriginQuery, Page, Position, Result, Submitted,
};

/// What is done with tasks from outside: by the API, whichever door a caller came through.
#[async_trait]
pub trait TaskStore: fmt::Debug + Send + Sync + 'static {
    /// Takes a task in. When an idle worker waits for it, it is claimed in the same commit. [`crate::Error::OverLimit`] when its
    /// tenant has all that one may have; what was taken in before is told all the same.
    async fn submit(&self, new: NewTask) -> Result<Submitted>;

    /// The task that a submission under this idempotency key made, and the hash of its request. What is known before
    /// needs no other check.
    async fn submitted(&self, tenant: &Tenant, key: &str) -> Result<Option<(Sha256, TaskId)>>;

    /// A task of a tenant, by the key of its submission or else by its id, and what it runs if that is wanted: all in one
    /// look.
    async fn look_up(&self, lookup: Lookup) -> Result<Option<(Task, Option<TaskInput>)>>;

    /// The same, unless that would be much to read: then how much.
    async fn look_up_small(&self, lookup: &Lookup) -> Result<LookedUp>;

    /// A task without its input.
    async fn task(&self, id: TaskId) -> Result<Option<Task>>;

    /// The same, but without what may be long if it is large: for whoever keeps it, or asks often.
    async fn glance(&self, id: TaskId) -> Result<Option<Glance>>;

    /// About how many bytes [`TaskStore::task`] would read, found out without reading them.
    async fn task_size(&self, id: TaskId) -> Result<Option<u64>>;

    /// Those of these tasks that are there, in no order, without their errors, results and metadata: one look for all of them. At
    /// most a thousand should be asked for.
    async fn briefly(&self, ids: &[TaskId]) -> Result<Vec<Task>>;

    /// How many bytes [`TaskStore::input`] would read, found out without reading them.
    async fn input_size(&self, id: TaskId) -> Result<Option<u64>>;

    /// What a task runs.
    async fn input(&self, id: TaskId) -> Result<Option<TaskInput>>;

    /// The last attempts of a task, at most this many, first to last, and fewer if their failures have much text. They are
    /// numbered from 1: the last one is [`Task::attempt`].
    async fn attempts(&self, id: TaskId, limit: u32) -> Result<Vec<Attempt>>;

    /// The lease on a task, while it runs.
    async fn lease(&self, id: TaskId) -> Result<Option<Lease>>;

    /// What happened to a task after its event `after`, oldest first: at most this many events, and no more after
    /// [`crate::EVENTS_TEXT`] bytes of data.
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
}
