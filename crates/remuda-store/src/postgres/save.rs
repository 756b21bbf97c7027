//! What a transaction changes: collected as values first, then written with one statement for each table.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use remuda_core::quota::Usage;
use remuda_core::transition::{Effects, Ended};
use remuda_core::{
    Attempt, AttemptOutcome, Errand, Failure, FeedPack, Idempotency, Lane, LaneId, Lease, PendingReason,
    Status, Task, TaskEvent, TaskId, TaskInput, Tenant, Timestamp,
};
use tokio_postgres::Row;

use super::fault::Fault;
use super::session::{Session, Transaction};
use super::{rows, write};
use crate::Change;

/// An attempt that is over.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) task: TaskId,
    pub(super) ended_at: Timestamp,
    pub(super) outcome: AttemptOutcome,
    pub(super) failure: Option<Failure>,
    pub(super) gpu_ms: Option<i64>,
}

/// A client's name for a submission.
#[derive(Debug)]
pub(super) struct Idem {
    pub(super) tenant: Tenant,
    pub(super) idempotency: Idempotency,
    pub(super) task: TaskId,
    pub(super) at: Timestamp,
}

/// How the numbers of tasks in each state change, in the order of [`Status::ALL`], and how many bytes more they take.
pub(super) type Deltas = [i64; 6];

/// The place of those bytes.
pub(super) const STORED: usize = 5;

/// What a transaction changes. Rows that are locked or updated are kept in the order of their keys, so that
/// transactions wait for each other and never in a circle.
#[derive(Debug, Default)]
pub(super) struct Save {
    pub(super) new_tasks: BTreeMap<TaskId, (Task, TaskInput)>,
    /// Of those that have some.
    pub(super) new_errands: BTreeMap<TaskId, (Tenant, Vec<Errand>)>,
    pub(super) tasks: BTreeMap<TaskId, Task>,
    pub(super) idems: Vec<Idem>,
    /// With the moment at which their attempts began.
    pub(super) new_leases: Vec<(Lease, Timestamp)>,
    pub(super) adopted: Vec<Lease>,
    pub(super) wanted: BTreeSet<TaskId>,
    pub(super) closed: Vec<Closed>,
    pub(super) events: Vec<TaskEvent>,
    /// The same for the feeds of tenants.
    pub(super) feed: BTreeMap<Tenant, FeedPack>,
    pub(super) sweeps: BTreeMap<TaskId, Timestamp>,
    pub(super) new_tenants: BTreeSet<Tenant>,
    pub(super) new_lanes: BTreeMap<LaneId, Lane>,
    /// The largest rank that is claimed from each lane.
    pub(super) lane_v: BTreeMap<LaneId, i64>,
    pub(super) counts: BTreeMap<Tenant, Deltas>,
    /// What the results of tasks that end count as.
    pub(super) left: BTreeMap<TaskId, i64>,
    /// Tasks whose input is wanted with the commit.
    pub(super) inputs: Vec<TaskId>,
    news: Vec<TaskId>,
    ready: BTreeSet<LaneId>,
}

/// What others should hear of when it is committed.
#[derive(Debug, Default, Clone)]
pub(super) struct Tidings {
    pub(super) changes: Vec<Change>,
    /// Lanes in which something can be claimed.
    pub(super) ready: BTreeSet<LaneId>,
    /// Running tasks whose holder should look at its lease.
    pub(super) news: Vec<TaskId>,
}

fn place(status: Status) -> usize {
    match status {
        Status::Pending => 0,
        Status::Running => 1,
        Status::Completed => 2,
        Status::Failed => 3,
        Status::Cancelled => 4,
    }
}

impl Save {
    /// A new task.
    pub(super) fn submitted(&mut self, task: Task, input: TaskInput, errands: &[Errand], event: TaskEvent) {
        if !errands.is_empty() {
            self.new_errands.insert(task.id, (task.tenant.clone(), errands.to_vec()));
        }
        self.count(&task.tenant, None, Some(task.status));
        self.store_bytes(&task.tenant, input.stored_bytes(task.metadata.as_ref()));
        self.happened(&task, event);
        self.queued(&task);
        self.new_tasks.insert(task.id, (task, input));
    }

    /// A task got a lease; `before` is what it was.
    pub(super) fn claimed(
        &mut self,
        before: Status,
        task: &Task,
        lease: &Lease,
        attempt: &Attempt,
        event: TaskEvent,
    ) {
        self.count(&task.tenant, Some(before), Some(task.status));
        self.new_leases.push((lease.clone(), attempt.started_at));
        self.happened(task, event);
        let v = self.lane_v.entry(task.lane.clone()).or_insert(task.rank);
        *v = task.rank.max(*v);
        self.put(task.clone());
    }

    /// An attempt ended: the lease goes.
    pub(super) fn ended(&mut self, task: &Task, ended: Ended, now: Timestamp) {
        self.count(&task.tenant, Some(Status::Running), Some(task.status));
        if let Some(result) = task.result.as_ref().filter(|_| task.status.is_terminal()) {
            let bytes = result.stored_bytes();
            self.store_bytes(&task.tenant, bytes);
            self.left.insert(task.id, bytes);
        }
        self.closed.push(Closed {
            task: task.id,
            ended_at: now,
            outcome: ended.outcome,
            failure: ended.failure,
            gpu_ms: ended.gpu_ms,
        });
        self.happened(task, ended.event);
        if task.may_have_left_files() || (task.status.is_terminal() && ended.discarded) {
            self.sweeps.insert(task.id, now);
        }
        self.queued(task);
        self.put(task.clone());
    }

    /// A task changed otherwise; `event` says how, when it is one.
    pub(super) fn changed(&mut self, before: Status, task: &Task, event: Option<TaskEvent>, now: Timestamp) {
        self.count(&task.tenant, Some(before), Some(task.status));
        if let Some(event) = event {
            self.happened(task, event);
        }
        if before != task.status && task.may_have_left_files() {
            self.sweeps.insert(task.id, now);
        }
        self.queued(task);
        self.put(task.clone());
    }

    /// Everything that a change of a task brings about: nothing else adds events, or tells the feed.
    fn happened(&mut self, task: &Task, event: TaskEvent) {
        let effects = Effects::of(task, &event);
        self.feed.entry(task.tenant.clone()).or_default().push(effects.feed);
        self.events.push(event);
    }

    /// The holder of this running task should look at its lease.
    pub(super) fn news(&mut self, task: TaskId) {
        self.news.push(task);
    }

    fn queued(&mut self, task: &Task) {
        if task.reason == Some(PendingReason::Queued) {
            self.ready.insert(task.lane.clone());
        }
    }

    fn put(&mut self, task: Task) {
        match self.new_tasks.get_mut(&task.id) {
            Some((new, _)) => *new = task,
            None => {
                self.tasks.insert(task.id, task);
            }
        }
    }

    /// A task left one state and came to another.
    pub(super) fn count(&mut self, tenant: &Tenant, from: Option<Status>, to: Option<Status>) {
        if from == to {
            return;
        }
        let deltas = self.counts.entry(tenant.clone()).or_default();
        if let Some(status) = from {
            deltas[place(status)] -= 1;
        }
        if let Some(status) = to {
            deltas[place(status)] += 1;
        }
    }

    /// The tasks of a tenant take this many bytes more.
    fn store_bytes(&mut self, tenant: &Tenant, bytes: i64) {
        self.counts.entry(tenant.clone()).or_default()[STORED] += bytes;
    }

    /// What this adds to what a tenant has.
    pub(super) fn adds(&self, tenant: &Tenant) -> Usage {
        self.counts.get(tenant).map_or_else(Usage::default, |deltas| Usage {
            waiting: deltas[place(Status::Pending)],
            bytes: deltas[STORED],
        })
    }

    /// Whether there is anything to write.
    pub(super) fn is_empty(&self) -> bool {
        self.new_tasks.is_empty()
            && self.tasks.is_empty()
            && self.wanted.is_empty()
            && self.events.is_empty()
            && self.new_lanes.is_empty()
            && self.counts.is_empty()
    }

    /// Whether there is something for the statement that writes most things.
    pub(super) fn is_large(&self) -> bool {
        !(self.new_tasks.is_empty()
            && self.tasks.is_empty()
            && self.events.is_empty()
            && self.counts.is_empty())
    }

    /// What others should hear of it.
    pub(super) fn tidings(&self) -> Tidings {
        let new = self.new_tasks.values().map(|(task, _)| task);
        let all = new.chain(self.tasks.values());
        let queued = |task: &&Task| task.reason == Some(PendingReason::Queued);
        let ready = all.clone().filter(queued).map(|task| task.lane.clone());
        Tidings {
            ready: ready.filter(|lane| self.ready.contains(lane)).collect(),
            changes: all.map(Change::of).collect(),
            news: self.news.iter().chain(&self.wanted).copied().collect(),
        }
    }

    /// Writes everything and commits, all of it under way at once: if one statement fails, the ones after it and
    /// the commit do nothing.
    pub(super) async fn commit(
        &self,
        session: Session,
        shard: i16,
    ) -> Result<HashMap<TaskId, TaskInput>, Fault> {
        let client = session.client()?;
        let statements = write::statements(self, shard);
        let params: Vec<_> = statements.iter().map(|(_, columns)| columns.params()).collect();
        let mut work: Vec<BoxFuture<'_, Result<Vec<Row>, tokio_postgres::Error>>> = Vec::new();
        for ((statement, _), params) in statements.iter().zip(&params) {
            work.push(client.query_typed(statement, params).boxed());
        }
        work.push(async { client.batch_execute("COMMIT").await.map(|()| Vec::new()) }.boxed());
        // Sent in this order, since each sends at its first poll.
        let done = join_all(work).await;
        let mut inputs = HashMap::new();
        let mut failed = None;
        for outcome in done {
            match outcome {
                // Only one of the statements returns rows.
                Ok(found) => {
                    for row in found {
                        inputs.insert(TaskId(rows::get(&row, 0)?), rows::input_at(&row, 1)?);
                    }
                }
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        match failed {
            None => session.done(),
            Some(error) => {
                let fault = Fault::from(error);
                // The server answered everything: the transaction is closed, the connection as good as before.
                if matches!(fault, Fault::Again(_) | Fault::Refused(_)) {
                    session.done();
                }
                return Err(fault);
            }
        }
        Ok(inputs)
    }

    /// The same for a transaction that is open.
    pub(super) async fn commit_in(&self, transaction: Transaction, shard: i16) -> Result<Tidings, Fault> {
        self.commit(transaction.into_session(), shard).await?;
        Ok(self.tidings())
    }
}
