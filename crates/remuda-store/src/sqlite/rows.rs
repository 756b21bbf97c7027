//! Rows as values and back.

use std::str::FromStr;
use std::sync::Arc;

use remuda_core::{
    Attempt, EventKind, Fence, JsonText, KeyId, KeyRecord, LaneId, Lease, Origin, OwnerId, Placement,
    Priority, PromptExtra, Requirements, Sha256, Task, TaskEvent, TaskId, TaskInput, Tenant, Timestamp,
    Worker, WorkerId,
};
use rusqlite::{Connection, Row};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::fault::{Outcome, corrupt};
use super::pieces::{self, Part};
use crate::{Asset, DocumentInfo};

/// A task with the number on which everything else about it hangs.
#[derive(Debug, Clone)]
pub(super) struct Numbered {
    pub(super) no: i64,
    pub(super) task: Task,
}

/// A lease with the moment at which its attempt began.
#[derive(Debug, Clone)]
pub(super) struct LeaseRow {
    pub(super) no: i64,
    pub(super) lease: Lease,
    pub(super) started_at: Timestamp,
}

/// What [`task`] reads, in its order. `brief`: without the texts that may be long. `living`: with what a task that has not
/// ended has of them. What an ended one left may be very long, and nobody changes it: who writes does without it.
macro_rules! task_columns {
    () => {
        task_columns!(
            "task.error, task.metadata, CASE WHEN task.finished_at IS NOT NULL \
             THEN (SELECT result FROM result WHERE result.no = task.no) END"
        )
    };
    (brief) => {
        task_columns!("NULL, NULL, NULL")
    };
    (living) => {
        task_columns!(
            "CASE WHEN task.finished_at IS NULL THEN task.error END, \
             CASE WHEN task.finished_at IS NULL THEN task.metadata END, NULL"
        )
    };
    ($texts:literal) => {
        concat!(
            "task.id, task.no, task.tenant, task.workflow_id, task.priority, task.status, task.reason, task.lane, \
             task.affinity, task.shape, task.cost_ms, task.rank, task.created_at, task.run_at, task.deadline, \
             task.started_at, task.finished_at, task.timeout_s, task.max_retries, task.failures, task.losses, \
             task.attempt, task.fence, task.version, task.cancel_at, task.worker, task.avoid_worker, \
             task.avoid_until, ",
            $texts,
            ", task.retry_of, task.dialect, task.external_id, task.client, task.hidden_at"
        )
    };
}
pub(super) use task_columns;

/// What [`lease`] reads, in its order.
macro_rules! lease_columns {
    () => {
        "lease.no, lease.task, lease.fence, lease.attempt, lease.owner, lease.worker, lease.prompt_id, \
         lease.started_at, lease.until, lease.phase, lease.progress, lease.rendering_since, lease.gateway, \
         lease.wanted"
    };
}
pub(super) use lease_columns;

/// As it is stored.
pub(super) fn micros(moment: Timestamp) -> i64 {
    moment.as_microsecond()
}

pub(super) fn opt_micros(moment: Option<Timestamp>) -> Option<i64> {
    moment.map(micros)
}

/// What is stored as JSON is made of our own types, which all can be written.
pub(super) fn json_text<T: Serialize + ?Sized>(value: &T) -> Outcome<String> {
    serde_json::to_string(value).map_err(|error| corrupt("a value that cannot be JSON", error))
}

pub(super) fn opt_json_text<T: Serialize>(value: Option<&T>) -> Outcome<Option<String>> {
    value.map(json_text).transpose()
}

/// A moment beyond those that can be told is the last one: one row that cannot be read would keep everybody from claiming.
pub(super) fn moment(value: i64) -> Outcome<Timestamp> {
    let last = if value > 0 { Timestamp::MAX } else { Timestamp::MIN };
    Ok(Timestamp::from_microsecond(value).unwrap_or(last))
}

fn at(row: &Row<'_>, i: usize) -> Outcome<Timestamp> {
    moment(row.get(i)?)
}

fn opt_at(row: &Row<'_>, i: usize) -> Outcome<Option<Timestamp>> {
    row.get::<_, Option<i64>>(i)?.map(moment).transpose()
}

pub(super) fn opt_text<'r>(row: &'r Row<'_>, i: usize) -> Outcome<Option<&'r str>> {
    let value = row.get_ref(i)?;
    value.as_str_or_null().map_err(|error| corrupt("a text", error))
}

fn text<'r>(row: &'r Row<'_>, i: usize) -> Outcome<&'r str> {
    opt_text(row, i)?.ok_or_else(|| corrupt("a text", "it is null"))
}

pub(super) fn parsed<T: FromStr<Err: std::fmt::Display>>(row: &Row<'_>, i: usize) -> Outcome<T> {
    text(row, i)?.parse().map_err(|error| corrupt("a name", error))
}

fn opt_parsed<T: FromStr<Err: std::fmt::Display>>(row: &Row<'_>, i: usize) -> Outcome<Option<T>> {
    opt_text(row, i)?.map(str::parse).transpose().map_err(|error| corrupt("a name", error))
}

fn json<T: DeserializeOwned>(row: &Row<'_>, i: usize) -> Outcome<T> {
    serde_json::from_str(text(row, i)?).map_err(|error| corrupt("JSON", error))
}

fn opt_json<T: DeserializeOwned>(row: &Row<'_>, i: usize) -> Outcome<Option<T>> {
    opt_text(row, i)?.map(serde_json::from_str).transpose().map_err(|error| corrupt("JSON", error))
}

pub(super) fn uuid(row: &Row<'_>, i: usize) -> Outcome<Uuid> {
    Ok(Uuid::from_bytes(row.get(i)?))
}

fn sha256(row: &Row<'_>, i: usize) -> Outcome<Sha256> {
    Ok(Sha256(row.get(i)?))
}

/// How long the texts of a task are: its error, its metadata and its result.
pub(super) fn text_size(row: &Row<'_>) -> Outcome<usize> {
    let sizes = [opt_text(row, 28)?, opt_text(row, 29)?, opt_text(row, 30)?];
    Ok(sizes.into_iter().flatten().map(str::len).sum())
}

/// A task from [`task_columns`].
pub(super) fn task(row: &Row<'_>) -> Outcome<Numbered> {
    let priority = Priority::new(row.get(4)?).map_err(|error| corrupt("a priority", error))?;
    let task = Task {
        id: TaskId(uuid(row, 0)?),
        tenant: parsed(row, 2)?,
        workflow_id: row.get(3)?,
        priority,
        status: parsed(row, 5)?,
        reason: opt_parsed(row, 6)?,
        lane: LaneId::from_stored(row.get(7)?),
        affinity: row.get(8)?,
        shape: row.get(9)?,
        cost_ms: row.get(10)?,
        rank: row.get(11)?,
        created_at: at(row, 12)?,
        run_at: at(row, 13)?,
        deadline: opt_at(row, 14)?,
        started_at: opt_at(row, 15)?,
        finished_at: opt_at(row, 16)?,
        timeout_s: row.get(17)?,
        max_retries: row.get(18)?,
        failures: row.get(19)?,
        losses: row.get(20)?,
        attempt: row.get(21)?,
        fence: Fence(row.get(22)?),
        version: row.get(23)?,
        cancel_at: opt_at(row, 24)?,
        worker: opt_parsed(row, 25)?,
        avoid_worker: opt_parsed(row, 26)?,
        avoid_until: opt_at(row, 27)?,
        error: opt_json(row, 28)?,
        metadata: opt_json(row, 29)?,
        result: opt_json(row, 30)?,
        retry_of: row.get::<_, Option<[u8; 16]>>(31)?.map(|bytes| TaskId(Uuid::from_bytes(bytes))),
        origin: origin(row, 32)?,
        hidden_at: opt_at(row, 35)?,
    };
    Ok(Numbered { no: row.get(1)?, task })
}

/// dialect, external_id, client from column `i` on.
fn origin(row: &Row<'_>, i: usize) -> Outcome<Option<Origin>> {
    let Some(dialect) = opt_parsed(row, i)? else {
        return Ok(None);
    };
    Ok(Some(Origin { dialect, external_id: row.get(i + 1)?, client: row.get(i + 2)? }))
}

/// A lease from [`lease_columns`].
pub(super) fn lease(row: &Row<'_>) -> Outcome<LeaseRow> {
    let lease = Lease {
        task: TaskId(uuid(row, 1)?),
        fence: Fence(row.get(2)?),
        attempt: row.get(3)?,
        owner: OwnerId(uuid(row, 4)?),
        worker: parsed(row, 5)?,
        prompt_id: uuid(row, 6)?,
        until: at(row, 8)?,
        phase: parsed(row, 9)?,
        progress: row.get(10)?,
        rendering_since: opt_at(row, 11)?,
        gateway: row.get(12)?,
        wanted: row.get(13)?,
    };
    Ok(LeaseRow { no: row.get(0)?, lease, started_at: at(row, 7)? })
}

/// An ended attempt of a task: n, owner, worker, prompt_id, started_at, ended_at, outcome, failure, gpu_ms.
pub(super) fn attempt(task: TaskId, row: &Row<'_>) -> Outcome<Attempt> {
    Ok(Attempt {
        task,
        n: row.get(0)?,
        owner: OwnerId(uuid(row, 1)?),
        worker: parsed(row, 2)?,
        prompt_id: uuid(row, 3)?,
        started_at: at(row, 4)?,
        ended_at: Some(at(row, 5)?),
        outcome: Some(parsed(row, 6)?),
        failure: opt_json(row, 7)?,
        gpu_ms: row.get(8)?,
    })
}

/// The attempt under way is what its lease says.
pub(super) fn attempt_under_way(row: LeaseRow) -> Attempt {
    let LeaseRow { lease, started_at, .. } = row;
    Attempt {
        task: lease.task,
        n: lease.attempt,
        owner: lease.owner,
        worker: lease.worker,
        prompt_id: lease.prompt_id,
        started_at,
        ended_at: None,
        outcome: None,
        failure: None,
        gpu_ms: None,
    }
}

/// An event: n, at, kind, data.
pub(super) fn event(task: TaskId, row: &Row<'_>) -> Outcome<TaskEvent> {
    Ok(TaskEvent { task, n: row.get(0)?, at: at(row, 1)?, kind: parsed(row, 2)?, data: json(row, 3)? })
}

/// The event of a task that came in.
pub(super) fn first_event(task: TaskId, created_at: Timestamp) -> TaskEvent {
    TaskEvent { task, n: 1, at: created_at, kind: EventKind::Submitted, data: JsonText::object() }
}

/// Whether [`first_event`] says all that this one does. Under many waiting tasks their first events would stand
/// between those of the tasks that run, and every claim would change one page more.
pub(super) fn is_told_by_task(event: &TaskEvent) -> bool {
    *event == first_event(event.task, event.at)
}

/// An input as it is stored. Whoever wants it checks it: that takes longer than reading it.
#[derive(Debug)]
pub(super) struct RawInput {
    placements: Option<String>,
    workflow: String,
    extra: Option<String>,
    /// What is secret of it, sealed; read for claims only.
    pub(super) envelope: Option<Vec<u8>>,
    /// The long text that has its graph and what came beside it, until that is read.
    text: Option<i64>,
    requires: Arc<Requirements>,
}

impl RawInput {
    /// placements, workflow, extra, text; the requirements are those of the lane it came into.
    pub(super) fn read(row: &Row<'_>, requires: Arc<Requirements>) -> Outcome<Self> {
        Ok(Self {
            placements: row.get(0)?,
            workflow: row.get(1)?,
            extra: row.get(2)?,
            envelope: None,
            text: row.get(3)?,
            requires,
        })
    }

    /// Whether it is not all here.
    pub(super) fn is_in_pieces(&self) -> bool {
        self.text.is_some()
    }

    /// Puts together what is in pieces.
    pub(super) fn fill(mut self, db: &Connection) -> Outcome<Self> {
        if let Some(text) = self.text.take() {
            self.workflow = pieces::read(db, text, Part::First)?.unwrap_or_default();
            if self.extra.is_none() {
                self.extra = pieces::read(db, text, Part::Beside)?;
            }
        }
        Ok(self)
    }

    /// How many bytes of text it is.
    pub(super) fn size(&self) -> usize {
        let beside = [&self.placements, &self.extra];
        self.workflow.len() + beside.into_iter().flatten().map(String::len).sum::<usize>()
    }

    pub(super) fn parse(self) -> Outcome<TaskInput> {
        let placements: Option<Vec<Placement>> = self
            .placements
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| corrupt("a list of files", error))?;
        let mut extra: Option<Box<PromptExtra>> = self
            .extra
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| corrupt("what came beside a workflow", error))?;
        if let Some(extra) = &mut extra {
            extra.envelope = self.envelope;
        }
        let workflow = RawValue::from_string(self.workflow).map_err(|error| corrupt("a workflow", error))?;
        let requires = Arc::unwrap_or_clone(self.requires);
        Ok(TaskInput { workflow, placements: placements.unwrap_or_default(), requires, extra })
    }
}

/// A lane: id, requires.
pub(super) fn requires(row: &Row<'_>, i: usize) -> Outcome<Requirements> {
    json(row, i)
}

/// A worker: spec, report, owner, fence, until, created_at, last_active_at.
pub(super) fn worker(row: &Row<'_>) -> Outcome<Worker> {
    Ok(Worker {
        spec: json(row, 0)?,
        report: json(row, 1)?,
        owner: OwnerId(uuid(row, 2)?),
        fence: Fence(row.get(3)?),
        until: at(row, 4)?,
        created_at: at(row, 5)?,
        last_active_at: at(row, 6)?,
    })
}

/// A key: id, name, tenant, scopes, hash, created_at, revoked_at.
pub(super) fn key(row: &Row<'_>) -> Outcome<KeyRecord> {
    Ok(KeyRecord {
        id: KeyId(uuid(row, 0)?),
        name: row.get(1)?,
        tenant: parsed(row, 2)?,
        scopes: json(row, 3)?,
        hash: sha256(row, 4)?,
        created_at: at(row, 5)?,
        revoked_at: opt_at(row, 6)?,
    })
}

/// An asset: tenant, sha256, key, filename, mime, size, created_at.
pub(super) fn asset(row: &Row<'_>) -> Outcome<Asset> {
    Ok(Asset {
        tenant: parsed(row, 0)?,
        sha256: sha256(row, 1)?,
        key: row.get(2)?,
        filename: row.get(3)?,
        mime: row.get(4)?,
        size: row.get(5)?,
        created_at: at(row, 6)?,
    })
}

/// A document without its bytes: path, length, created_at, modified_at.
pub(super) fn document_info(row: &Row<'_>) -> Outcome<DocumentInfo> {
    Ok(DocumentInfo {
        path: row.get(0)?,
        size: row.get(1)?,
        created_at: at(row, 2)?,
        modified_at: at(row, 3)?,
    })
}

/// A tenant in a column.
pub(super) fn tenant(row: &Row<'_>, i: usize) -> Outcome<Tenant> {
    parsed(row, i)
}

/// A worker's name in a column that may be empty.
pub(super) fn opt_worker_id(row: &Row<'_>, i: usize) -> Outcome<Option<WorkerId>> {
    opt_parsed(row, i)
}
