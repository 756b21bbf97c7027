//! Rows of the tables as the core's types.

use std::str::FromStr;

use postgres_types::{FromSql, Json};
use remuda_core::schedule::TenantClock;
use remuda_core::{
    Attempt, Failure, Fence, KeyId, KeyRecord, LaneId, Lease, Origin, OwnerId, Placement, Priority,
    Requirements, Scope, Sha256, Task, TaskEvent, TaskId, TaskInput, TaskResult, Tenant, Timestamp, Worker,
    WorkerId, WorkerReport, WorkerSpec,
};
use serde_json::value::RawValue;
use tokio_postgres::Row;
use uuid::Uuid;

use super::fault::Fault;
use crate::{Asset, DocumentInfo, Error};

/// All columns of a task, in the order in which [`task`] reads and [`super::save`] writes them. The texts that may be long
/// can come from another table: from [`no_texts`], for lists that do without them.
macro_rules! task_columns {
    ($table:literal) => {
        task_columns!($table, $table)
    };
    ($table:literal, $texts:literal) => {
        concat!(
            $table,
            ".id,",
            $table,
            ".tenant,",
            $table,
            ".workflow_id,",
            $table,
            ".priority,",
            $table,
            ".status,",
            $table,
            ".reason,",
            $table,
            ".lane,",
            $table,
            ".affinity,",
            $table,
            ".shape,",
            $table,
            ".cost_ms,",
            $table,
            ".rank,",
            $table,
            ".created_at,",
            $table,
            ".run_at,",
            $table,
            ".deadline,",
            $table,
            ".started_at,",
            $table,
            ".finished_at,",
            $table,
            ".timeout_s,",
            $table,
            ".max_retries,",
            $table,
            ".failures,",
            $table,
            ".losses,",
            $table,
            ".attempt,",
            $table,
            ".fence,",
            $table,
            ".version,",
            $table,
            ".cancel_at,",
            $table,
            ".worker,",
            $table,
            ".avoid_worker,",
            $table,
            ".avoid_until,",
            $texts,
            ".error,",
            $texts,
            ".result,",
            $texts,
            ".metadata,",
            $table,
            ".retry_of,",
            $table,
            ".dialect,",
            $table,
            ".external_id,",
            $table,
            ".client,",
            $table,
            ".hidden_at"
        )
    };
}
pub(super) use task_columns;

/// How many they are.
pub(super) const TASK_COLUMNS: usize = 35;

/// Takes the place of the table of the long texts.
macro_rules! no_texts {
    () => {
        " CROSS JOIN (SELECT NULL::json AS error, NULL::json AS result, NULL::json AS metadata) n"
    };
}
pub(super) use no_texts;

/// The long texts of a task `t` that has not ended. What an ended one left may be very long, and nobody changes it: who
/// writes does without it.
macro_rules! living_texts {
    () => {
        " CROSS JOIN LATERAL (SELECT CASE WHEN t.finished_at IS NULL THEN t.error END AS error, NULL::json AS result, \
         CASE WHEN t.finished_at IS NULL THEN t.metadata END AS metadata) x"
    };
}
pub(super) use living_texts;

/// All columns of a lease.
macro_rules! lease_columns {
    () => {
        "l.task, l.fence, l.attempt, l.owner, l.worker, l.prompt_id, l.until, l.phase, l.progress, \
         l.rendering_since, l.gateway, l.wanted"
    };
}
pub(super) use lease_columns;

/// A value of a row; what does not fit its type is not ours.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, Fault> {
    row.try_get(index).map_err(|error| {
        let column = row.columns().get(index).map_or("?", tokio_postgres::Column::name);
        Fault::Is(Error::Corrupt(format!("column {column}: {}", super::fault::words(&error))))
    })
}

pub(super) fn parse<T: FromStr>(row: &Row, index: usize) -> Result<T, Fault>
where
    T::Err: std::fmt::Display,
{
    let text: &str = get(row, index)?;
    text.parse().map_err(|error: T::Err| Fault::Is(Error::Corrupt(error.to_string())))
}

fn parse_opt<T: FromStr>(row: &Row, index: usize) -> Result<Option<T>, Fault>
where
    T::Err: std::fmt::Display,
{
    let text: Option<&str> = get(row, index)?;
    text.map(str::parse).transpose().map_err(|error: T::Err| Fault::Is(Error::Corrupt(error.to_string())))
}

fn json<T: serde::de::DeserializeOwned>(row: &Row, index: usize) -> Result<Option<T>, Fault> {
    let value: Option<Json<T>> = get(row, index)?;
    Ok(value.map(|Json(value)| value))
}

fn present<T>(value: Option<T>, what: &str) -> Result<T, Fault> {
    value.ok_or_else(|| Fault::Is(Error::Corrupt(format!("{what} is missing"))))
}

/// A SHA-256 of a `bytea` column.
pub(super) fn hash(row: &Row, index: usize) -> Result<Sha256, Fault> {
    let bytes: &[u8] = get(row, index)?;
    let bytes = bytes.try_into().map_err(|_| Error::Corrupt("a hash has not 32 bytes".to_owned()))?;
    Ok(Sha256(bytes))
}

/// A task whose columns begin at `at`.
pub(super) fn task_at(row: &Row, at: usize) -> Result<Task, Fault> {
    let priority: i16 = get(row, at + 3)?;
    Ok(Task {
        id: TaskId(get(row, at)?),
        tenant: parse(row, at + 1)?,
        workflow_id: get(row, at + 2)?,
        priority: Priority::new(i64::from(priority)).map_err(|error| Error::Corrupt(error.to_string()))?,
        status: parse(row, at + 4)?,
        reason: parse_opt(row, at + 5)?,
        lane: LaneId::from_stored(get(row, at + 6)?),
        affinity: get(row, at + 7)?,
        shape: get(row, at + 8)?,
        cost_ms: get(row, at + 9)?,
        rank: get(row, at + 10)?,
        created_at: get(row, at + 11)?,
        run_at: get(row, at + 12)?,
        deadline: get(row, at + 13)?,
        started_at: get(row, at + 14)?,
        finished_at: get(row, at + 15)?,
        timeout_s: get(row, at + 16)?,
        max_retries: get(row, at + 17)?,
        failures: get(row, at + 18)?,
        losses: get(row, at + 19)?,
        attempt: get(row, at + 20)?,
        fence: Fence(get(row, at + 21)?),
        version: get(row, at + 22)?,
        cancel_at: get(row, at + 23)?,
        worker: parse_opt(row, at + 24)?,
        avoid_worker: parse_opt(row, at + 25)?,
        avoid_until: get(row, at + 26)?,
        error: json::<Failure>(row, at + 27)?,
        result: json::<TaskResult>(row, at + 28)?,
        metadata: json(row, at + 29)?,
        retry_of: get::<Option<Uuid>>(row, at + 30)?.map(TaskId),
        origin: origin_at(row, at + 31)?,
        hidden_at: get(row, at + 34)?,
    })
}

/// `dialect, external_id, client` from column `at` on.
fn origin_at(row: &Row, at: usize) -> Result<Option<Origin>, Fault> {
    let Some(dialect) = parse_opt(row, at)? else { return Ok(None) };
    Ok(Some(Origin { dialect, external_id: get(row, at + 1)?, client: get(row, at + 2)? }))
}

/// A row that is a task.
pub(super) fn task(row: &Row) -> Result<Task, Fault> {
    task_at(row, 0)
}

/// Reads rows, beside the runtime if there is much in them.
pub(super) async fn read<T: Send + 'static>(
    rows: Vec<Row>,
    read: impl FnOnce(&[Row]) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    const SMALL: usize = 64 << 10;
    if rows.iter().map(Row::raw_size_bytes).sum::<usize>() <= SMALL {
        return read(&rows);
    }
    tokio::task::spawn_blocking(move || read(&rows)).await.unwrap_or(Err(Fault::Is(Error::Closed)))
}

/// Rows that are tasks.
pub(super) fn tasks(rows: &[Row]) -> Result<Vec<Task>, Fault> {
    rows.iter().map(task).collect()
}

/// `workflow, placements, requires, extra` from column `at` on.
pub(super) fn input_at(row: &Row, at: usize) -> Result<TaskInput, Fault> {
    let workflow: String = get(row, at)?;
    let workflow = RawValue::from_string(workflow)
        .map_err(|error| Error::Corrupt(format!("a stored workflow is not JSON: {error}")))?;
    let extra: Option<&str> = get(row, at + 3)?;
    let unlike = |error| Error::Corrupt(format!("what came beside a stored workflow is not JSON: {error}"));
    Ok(TaskInput {
        workflow,
        placements: present(json::<Vec<Placement>>(row, at + 1)?, "placements")?,
        requires: present(json::<Requirements>(row, at + 2)?, "requires")?,
        extra: extra.map(serde_json::from_str).transpose().map_err(unlike)?,
    })
}

/// A row that is a lease.
pub(super) fn lease(row: &Row) -> Result<Lease, Fault> {
    Ok(Lease {
        task: TaskId(get(row, 0)?),
        fence: Fence(get(row, 1)?),
        attempt: get(row, 2)?,
        owner: OwnerId(get(row, 3)?),
        worker: parse::<WorkerId>(row, 4)?,
        prompt_id: get(row, 5)?,
        until: get(row, 6)?,
        phase: parse(row, 7)?,
        progress: get(row, 8)?,
        rendering_since: get(row, 9)?,
        gateway: get(row, 10)?,
        wanted: get(row, 11)?,
    })
}

/// `task, n, owner, worker, prompt_id, started_at, ended_at, outcome, failure, gpu_ms`.
pub(super) fn attempt(row: &Row) -> Result<Attempt, Fault> {
    Ok(Attempt {
        task: TaskId(get(row, 0)?),
        n: get(row, 1)?,
        owner: OwnerId(get(row, 2)?),
        worker: parse::<WorkerId>(row, 3)?,
        prompt_id: get(row, 4)?,
        started_at: get(row, 5)?,
        ended_at: get(row, 6)?,
        outcome: parse_opt(row, 7)?,
        failure: json::<Failure>(row, 8)?,
        gpu_ms: get(row, 9)?,
    })
}

/// `task, n, at, kind, data`.
pub(super) fn event(row: &Row) -> Result<TaskEvent, Fault> {
    Ok(TaskEvent {
        task: TaskId(get(row, 0)?),
        n: get(row, 1)?,
        at: get(row, 2)?,
        kind: parse(row, 3)?,
        data: present(json(row, 4)?, "data")?,
    })
}

/// A worker's columns.
pub(super) const WORKER: &str =
    "id, endpoint, name, labels, report, owner, fence, until, created_at, last_active_at";

/// A row of [`WORKER`].
pub(super) fn worker(row: &Row) -> Result<Worker, Fault> {
    let labels: Vec<String> = get(row, 3)?;
    Ok(Worker {
        spec: WorkerSpec {
            id: parse(row, 0)?,
            endpoint: get(row, 1)?,
            name: get(row, 2)?,
            labels: labels.into_iter().collect(),
        },
        report: present(json::<WorkerReport>(row, 4)?, "report")?,
        owner: OwnerId(get(row, 5)?),
        fence: Fence(get(row, 6)?),
        until: get(row, 7)?,
        created_at: get(row, 8)?,
        last_active_at: get(row, 9)?,
    })
}

/// `vfinish, weight` from column `at` on.
pub(super) fn clock_at(row: &Row, at: usize) -> Result<TenantClock, Fault> {
    let vfinish: Vec<i64> = get(row, at)?;
    let vfinish = vfinish
        .try_into()
        .map_err(|_| Error::Corrupt("a tenant's clock has not one moment for each priority".to_owned()))?;
    Ok(TenantClock { vfinish, weight: get(row, at + 1)? })
}

/// `id, name, tenant, scopes, hash, created_at, revoked_at`.
pub(super) fn key(row: &Row) -> Result<KeyRecord, Fault> {
    let scopes: Vec<String> = get(row, 3)?;
    let scopes = scopes.iter().map(|scope| scope.parse::<Scope>()).collect::<Result<_, _>>();
    Ok(KeyRecord {
        id: KeyId(get::<Uuid>(row, 0)?),
        name: get(row, 1)?,
        tenant: parse::<Tenant>(row, 2)?,
        scopes: scopes.map_err(Error::Corrupt)?,
        hash: hash(row, 4)?,
        created_at: get::<Timestamp>(row, 5)?,
        revoked_at: get(row, 6)?,
    })
}

/// `tenant, sha256, key, filename, mime, size, created_at`.
pub(super) fn asset(row: &Row) -> Result<Asset, Fault> {
    Ok(Asset {
        tenant: parse(row, 0)?,
        sha256: hash(row, 1)?,
        key: get(row, 2)?,
        filename: get(row, 3)?,
        mime: get(row, 4)?,
        size: get(row, 5)?,
        created_at: get(row, 6)?,
    })
}

/// `path, octet_length(bytes), created_at, modified_at`.
pub(super) fn document_info(row: &Row) -> Result<DocumentInfo, Fault> {
    let size: i32 = get(row, 1)?;
    Ok(DocumentInfo {
        path: get(row, 0)?,
        size: i64::from(size),
        created_at: get(row, 2)?,
        modified_at: get(row, 3)?,
    })
}
