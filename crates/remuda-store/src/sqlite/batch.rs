//! One transaction of the writer: what commands see, and how rows are written.

use std::collections::BTreeMap;
use std::sync::Arc;

use remuda_core::transition::{self, Ended};
use remuda_core::{
    Attempt, FeedPack, LaneId, Lease, LeaseRef, PendingReason, Status, Task, TaskEvent, TaskId, TaskResult,
    Tenant, Timestamp,
};
use rusqlite::{Connection, params};

use super::fault::{Outcome, corrupt};
use super::pieces::{self, Laid, Part};
use super::rows::{self, Numbered, json_text, micros, opt_json_text, opt_micros, task_columns};
use super::state::{Held, Settings, State};
use super::unfinished::Tally;
use crate::Change;

/// What must be told after the commit.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) changes: Vec<Change>,
    /// Somebody should look at the leases that beats wait for.
    pub(super) news: bool,
    /// Leases that went to somebody else: their holders should know.
    pub(super) lost: Vec<LeaseRef>,
    /// A worker changed hands: claims for it may be void.
    pub(super) drivers: bool,
    /// Who has more or fewer tasks now that have not ended.
    pub(super) unfinished: Vec<Tally>,
    /// Long texts whose rows are gone.
    pub(super) left_over: Vec<i64>,
    /// How many bytes were written that are no rows.
    pub(super) long: usize,
    /// What happened to the tasks of each tenant. Written before the commit.
    pub(super) feed: BTreeMap<Tenant, FeedPack>,
}

/// One transaction.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    pub(super) db: &'a Connection,
    pub(super) state: &'a mut State,
    pub(super) settings: &'a Settings,
    pub(super) now: Timestamp,
    pub(super) effects: Effects,
}

impl<'a> Batch<'a> {
    pub(super) fn new(db: &'a Connection, state: &'a mut State, settings: &'a Settings) -> Self {
        let now = settings.now();
        Self { db, state, settings, now, effects: Effects::default() }
    }

    /// A task by its id: if it has ended, without what it left.
    pub(super) fn load(&self, id: TaskId) -> Outcome<Option<Numbered>> {
        if let Some(held) = self.state.running.get(&id) {
            return Ok(Some(Numbered { no: held.no, task: held.task.clone() }));
        }
        self.load_row(id)
    }

    /// A task that is not running, by its id: if it has ended, without what it left.
    pub(super) fn load_row(&self, id: TaskId) -> Outcome<Option<Numbered>> {
        let select = concat!("SELECT ", task_columns!(living), " FROM task WHERE id = ?");
        let mut statement = self.db.prepare_cached(select)?;
        let mut found = statement.query((id.0.as_bytes(),))?;
        found.next()?.map(rows::task).transpose()
    }

    /// A new task that counts as this many bytes, unless there is one with its id. Its lane has to hear of it.
    pub(super) fn insert_task(&mut self, no: i64, task: &Task, bytes: i64) -> Outcome<bool> {
        let sql = "INSERT INTO task (id, no, tenant, workflow_id, priority, status, reason, lane, affinity, shape, \
                   cost_ms, rank, created_at, run_at, deadline, timeout_s, max_retries, failures, losses, attempt, \
                   fence, version, metadata, retry_of, dialect, external_id, client, stored) \
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, ?, ?, ?, ?, ?, ?, ?) \
                   ON CONFLICT DO NOTHING";
        let origin = task.origin.as_ref();
        let inserted = self.db.prepare_cached(sql)?.execute(params![
            task.id.0.as_bytes(),
            no,
            task.tenant.as_str(),
            task.workflow_id,
            task.priority.get(),
            task.status.as_str(),
            task.reason.map(PendingReason::as_str),
            task.lane.as_str(),
            task.affinity,
            task.shape,
            task.cost_ms,
            task.rank,
            micros(task.created_at),
            micros(task.run_at),
            opt_micros(task.deadline),
            task.timeout_s,
            task.max_retries,
            task.version,
            opt_json_text(task.metadata.as_ref())?,
            task.retry_of.as_ref().map(|id| id.0.as_bytes()),
            origin.map(|origin| origin.dialect.as_str()),
            origin.and_then(|origin| origin.external_id.as_deref()),
            origin.and_then(|origin| origin.client.as_deref()),
            bytes,
        ])?;
        if inserted == 0 {
            return Ok(false);
        }
        self.state.count(&task.tenant, None, Some(task.status));
        self.state.store_bytes(&task.tenant, bytes);
        self.tally(task, 1);
        Ok(true)
    }

    /// A task that changed. `was`: its state before, and whether it was in the queue.
    pub(super) fn update_task(&mut self, was: &Was, task: &Task) -> Outcome<()> {
        let ends = was.finished_at.is_none() && task.finished_at.is_some();
        let left = task.result.as_ref().filter(|_| ends).map_or(0, TaskResult::stored_bytes);
        let sql = "UPDATE task SET status = ?2, reason = ?3, lane = ?4, run_at = ?5, started_at = ?6, \
                   finished_at = ?7, failures = ?8, losses = ?9, attempt = ?10, fence = ?11, version = ?12, \
                   cancel_at = ?13, worker = ?14, avoid_worker = ?15, avoid_until = ?16, error = ?17, \
                   stored = stored + ?18 \
                   WHERE id = ?1";
        self.db.prepare_cached(sql)?.execute(params![
            task.id.0.as_bytes(),
            task.status.as_str(),
            task.reason.map(PendingReason::as_str),
            task.lane.as_str(),
            micros(task.run_at),
            opt_micros(task.started_at),
            opt_micros(task.finished_at),
            task.failures,
            task.losses,
            task.attempt,
            task.fence.0,
            task.version,
            opt_micros(task.cancel_at),
            task.worker.as_ref().map(remuda_core::WorkerId::as_str),
            task.avoid_worker.as_ref().map(remuda_core::WorkerId::as_str),
            opt_micros(task.avoid_until),
            opt_json_text(task.error.as_ref())?,
            left,
        ])?;
        self.state.store_bytes(&task.tenant, left);
        self.state.count(&task.tenant, Some(was.status), Some(task.status));
        if ends {
            self.tally(task, -1);
        }
        if was.queued {
            self.state.lanes.unqueued(&was.lane, task.rank);
        }
        if was.finished_at.is_none() {
            let ended = task.finished_at.is_some();
            if !ended && was.lane != task.lane {
                self.state.lanes.enter(&task.tenant, &task.lane);
            }
            if ended || was.lane != task.lane {
                self.state.lanes.leave(self.db, &task.tenant, &was.lane)?;
            }
        }
        self.entered(task);
        Ok(())
    }

    /// One piece of a long text.
    pub(super) fn put_piece(&mut self, laid: &Laid, part: Part, n: usize, piece: &str) -> Outcome<()> {
        self.effects.long += piece.len();
        pieces::write(self.db, laid.text, part, n, piece)
    }

    /// What a task left, unless it is tried again. A long one was laid down before.
    pub(super) fn insert_result(&self, no: i64, task: &Task, laid: Option<&Laid>) -> Outcome<()> {
        let Some(result) = task.result.as_ref().filter(|_| task.finished_at.is_some()) else { return Ok(()) };
        let (result, text) = match laid {
            Some(laid) => (String::new(), Some(laid.text)),
            None => (json_text(result)?, None),
        };
        let sql = "INSERT INTO result_row (no, result, text) VALUES (?, ?, ?)";
        self.db.prepare_cached(sql)?.execute((no, result, text))?;
        Ok(())
    }

    /// Everything that a change of a task brings about, in the transaction of the change: nothing else writes events, or tells
    /// the feed.
    pub(super) fn happened(&mut self, no: i64, task: &Task, event: &TaskEvent) -> Outcome<()> {
        if !rows::is_told_by_task(event) {
            self.insert_event(no, event)?;
        }
        let effects = transition::Effects::of(task, event);
        self.tell(&task.tenant, effects.feed);
        Ok(())
    }

    fn insert_event(&self, no: i64, event: &TaskEvent) -> Outcome<()> {
        let sql = "INSERT INTO event_row (no, n, at, kind, data) VALUES (?, ?, ?, ?, ?)";
        let params = (no, event.n, micros(event.at), event.kind.as_str(), event.data.get());
        self.db.prepare_cached(sql)?.execute(params)?;
        Ok(())
    }

    /// Others should know after the commit.
    pub(super) fn changed(&mut self, change: Change) {
        self.effects.changes.push(change);
    }

    /// A task and its event, when it was not running.
    pub(super) fn save(&mut self, no: i64, was: &Was, task: &Task, event: &TaskEvent) -> Outcome<()> {
        self.update_task(was, task)?;
        self.happened(no, task, event)?;
        self.changed(Change::of(task));
        self.note_sweep(no, task, false)
    }

    /// A task that was taken from the running ones: its lease goes, its attempt is closed.
    pub(super) fn close(&mut self, held: Held, was: &Was, ended: &Ended) -> Outcome<()> {
        let Held { no, task, lease, started_at } = held;
        self.db.prepare_cached("DELETE FROM lease WHERE no = ?")?.execute((no,))?;
        self.update_task(was, &task)?;
        self.happened(no, &task, &ended.event)?;
        let sql = "INSERT INTO attempt (no, n, owner, worker, prompt_id, started_at, ended_at, outcome, failure, \
                   gpu_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        self.db.prepare_cached(sql)?.execute(params![
            no,
            lease.attempt,
            lease.owner.0.as_bytes(),
            lease.worker.as_str(),
            lease.prompt_id.as_bytes(),
            micros(started_at),
            micros(self.now),
            ended.outcome.as_str(),
            opt_json_text(ended.failure.as_ref())?,
            ended.gpu_ms,
        ])?;
        self.note_sweep(no, &task, ended.discarded)?;
        let (id, version) = (task.id, task.version);
        let ended = task.status.is_terminal().then(|| Arc::new(task));
        self.changed(Change { task: id, version, ended });
        Ok(())
    }

    fn note_sweep(&mut self, no: i64, task: &Task, discarded: bool) -> Outcome<()> {
        if task.may_have_left_files() || (task.status.is_terminal() && discarded) {
            let sql = "INSERT INTO sweep (no, task) VALUES (?, ?) ON CONFLICT DO NOTHING";
            self.db.prepare_cached(sql)?.execute((no, task.id.0.as_bytes()))?;
        }
        Ok(())
    }

    /// A new lease, and with it the record of its attempt.
    pub(super) fn insert_lease(&mut self, no: i64, lease: &Lease, attempt: &Attempt) -> Outcome<()> {
        let sql = "INSERT INTO lease (no, task, fence, attempt, owner, worker, prompt_id, started_at, until, phase, \
                   progress, rendering_since, gateway, wanted) \
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        self.db.prepare_cached(sql)?.execute(params![
            no,
            lease.task.0.as_bytes(),
            lease.fence.0,
            lease.attempt,
            lease.owner.0.as_bytes(),
            lease.worker.as_str(),
            lease.prompt_id.as_bytes(),
            micros(attempt.started_at),
            micros(lease.until),
            lease.phase.as_str(),
            lease.progress,
            opt_micros(lease.rendering_since),
            lease.gateway,
            lease.wanted,
        ])?;
        Ok(())
    }

    /// A lease that changed.
    pub(super) fn update_lease(&self, no: i64, lease: &Lease) -> Outcome<()> {
        let sql = "UPDATE lease SET fence = ?2, owner = ?3, until = ?4, phase = ?5, progress = ?6, \
                   rendering_since = ?7, gateway = ?8, wanted = ?9 WHERE no = ?1";
        let changed = self.db.prepare_cached(sql)?.execute(params![
            no,
            lease.fence.0,
            lease.owner.0.as_bytes(),
            micros(lease.until),
            lease.phase.as_str(),
            lease.progress,
            opt_micros(lease.rendering_since),
            lease.gateway,
            lease.wanted,
        ])?;
        if changed == 1 { Ok(()) } else { Err(corrupt("a lease", "it is not in the file any more")) }
    }

    /// Its lane hears of a task that waits in the queue.
    pub(super) fn entered(&mut self, task: &Task) {
        if task.reason == Some(PendingReason::Queued) {
            self.state.lanes.queued(&task.lane, task.rank);
        }
    }
}

/// What a task was before it changed.
#[derive(Debug, Clone)]
pub(super) struct Was {
    pub(super) status: Status,
    lane: LaneId,
    queued: bool,
    finished_at: Option<Timestamp>,
}

impl From<&Task> for Was {
    fn from(task: &Task) -> Self {
        let queued = task.reason == Some(PendingReason::Queued);
        Self { status: task.status, lane: task.lane.clone(), queued, finished_at: task.finished_at }
    }
}
