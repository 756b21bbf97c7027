//! Queries about one thing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::quota::Usage;
use remuda_core::{
    Attempt, KeyId, KeyRecord, LaneId, Lease, OwnerId, PendingReason, Sha256, Status, Task, TaskEvent,
    TaskId, TaskInput, Tenant, Timestamp, Version, Worker, WorkerId,
};
use rusqlite::{Connection, OptionalExtension as _, Params, Row, params};
use uuid::Uuid;

use super::fault::{Outcome, corrupt};
use super::lanes::{self, Shared};
use super::pieces::{self, Part};
use super::rows::{self, Numbered, RawInput, lease_columns, micros, task_columns};
use crate::store::{ATTEMPTS_TEXT, EVENTS_TEXT};
use crate::{Asset, AssetUse, Counts, Error, Glance, LookedUp, Lookup, Position};

/// Beyond this many the position in the queue is estimated.
const COUNTED: i64 = 1000;

/// After this many bytes of results no further task is read whose files are to be swept.
const UNSWEPT_TEXT: usize = 8 << 20;

/// In this many lanes it is counted.
const COUNTED_LANES: usize = 64;

pub(super) fn all<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl Fn(&Row<'_>) -> Outcome<T>,
) -> Outcome<Vec<T>> {
    let mut statement = db.prepare_cached(sql)?;
    let mut found = statement.query(params)?;
    let mut values = Vec::new();
    while let Some(row) = found.next()? {
        values.push(read(row)?);
    }
    Ok(values)
}

/// Rows until a column has this much text in all of them together: no more than `enough`, or that they are large if it is more
/// than `most`.
fn as_much<T>(
    db: &Connection,
    (sql, params): (&str, impl Params),
    (most, enough): (usize, usize),
    column: usize,
    read: impl Fn(&Row<'_>) -> Outcome<T>,
) -> Outcome<Looked<Vec<T>>> {
    let mut statement = db.prepare_cached(sql)?;
    let mut found = statement.query(params)?;
    let (mut values, mut text) = (Vec::new(), 0);
    while text < enough
        && let Some(row) = found.next()?
    {
        text += rows::opt_text(row, column)?.map_or(0, str::len);
        if text > most {
            return Ok(Looked::Large);
        }
        values.push(read(row)?);
    }
    Ok(Looked::Found(values))
}

pub(super) fn one<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl Fn(&Row<'_>) -> Outcome<T>,
) -> Outcome<Option<T>> {
    let mut statement = db.prepare_cached(sql)?;
    let mut found = statement.query(params)?;
    found.next()?.map(read).transpose()
}

fn number(db: &Connection, id: TaskId) -> Outcome<Option<i64>> {
    let sql = "SELECT no FROM task WHERE id = ?";
    Ok(db.prepare_cached(sql)?.query_row((id.0.as_bytes(),), |row| row.get(0)).optional()?)
}

/// A read that touches the file.
pub(super) fn ping(db: &Connection) -> Outcome<()> {
    db.prepare_cached("SELECT version FROM schema")?.query_row((), |row| row.get::<_, i64>(0))?;
    Ok(())
}

/// Whose a task is.
pub(super) fn whose(db: &Connection, id: TaskId) -> Outcome<Option<Tenant>> {
    one(db, "SELECT tenant FROM task WHERE id = ?", (id.0.as_bytes(),), |row| rows::parsed(row, 0))
}

/// What is read where it is asked for, unless it is large.
pub(super) enum Looked<T> {
    Found(T),
    Large,
}

impl<T> Looked<Option<T>> {
    /// What was found without a bound.
    pub(super) fn found(self) -> Option<T> {
        match self {
            Self::Found(found) => found,
            Self::Large => None,
        }
    }
}

/// A task, if its texts have no more than this many bytes.
pub(super) fn task_within(db: &Connection, id: TaskId, most: usize) -> Outcome<Looked<Option<Task>>> {
    Ok(match numbered(db, id, most)? {
        Looked::Found(found) => Looked::Found(found.map(|found| found.task)),
        Looked::Large => Looked::Large,
    })
}

fn numbered(db: &Connection, id: TaskId, most: usize) -> Outcome<Looked<Option<Numbered>>> {
    let is_large = |size: u64| usize::try_from(size).map_or(true, |size| size > most);
    if most < usize::MAX && task_size(db, id)?.is_some_and(is_large) {
        return Ok(Looked::Large);
    }
    let sql = concat!("SELECT ", task_columns!(), " FROM task WHERE id = ?");
    Ok(Looked::Found(one(db, sql, (id.0.as_bytes(),), rows::task)?))
}

/// How long the texts of a task are, found out without reading them: lengths stand at the head of a row, and a result in pieces
/// is put together only for those who read it.
pub(super) fn task_size(db: &Connection, id: TaskId) -> Outcome<Option<u64>> {
    let sql = "SELECT coalesce(octet_length(task.error), 0) + coalesce(octet_length(task.metadata), 0) \
               + coalesce(octet_length(r.result), 0), r.text \
               FROM task LEFT JOIN result_row r ON r.no = task.no WHERE task.id = ?";
    one(db, sql, (id.0.as_bytes(),), |row| {
        let here = u64::try_from(row.get::<_, i64>(0)?).unwrap_or(0);
        let Some(text) = row.get::<_, Option<i64>>(1)? else { return Ok(here) };
        Ok(here + pieces::size(db, text, Part::First)? as u64)
    })
}

/// A task, without what is long if its texts have more than this many bytes.
pub(super) fn glance(db: &Connection, id: TaskId, most: usize) -> Outcome<Option<Glance>> {
    Ok(match task_within(db, id, most)? {
        Looked::Found(found) => found.map(Glance::whole),
        Looked::Large => brief(db, id)?.map(Glance::brief),
    })
}

/// A task without its error, its metadata and its result.
pub(super) fn brief(db: &Connection, id: TaskId) -> Outcome<Option<Task>> {
    let sql = concat!("SELECT ", task_columns!(brief), " FROM task WHERE id = ?");
    Ok(one(db, sql, (id.0.as_bytes(),), rows::task)?.map(|found| found.task))
}

/// A task, and its input if it is asked for, if they have no more than this many bytes.
#[expect(clippy::type_complexity, reason = "what a lookup gives, or that it is large")]
pub(super) fn look_up(
    db: &Connection,
    lookup: &Lookup,
    most: usize,
) -> Outcome<Looked<Option<(Task, Option<TaskInput>)>>> {
    let Some(id) = named(db, lookup)? else {
        return Ok(Looked::Found(None));
    };
    let Looked::Found(found) = numbered(db, id, most)? else { return Ok(Looked::Large) };
    let Some(Numbered { no, task }) = found.filter(|found| found.task.tenant == lookup.tenant) else {
        return Ok(Looked::Found(None));
    };
    if !lookup.input {
        return Ok(Looked::Found(Some((task, None))));
    }
    if is_larger(db, no, most)? {
        return Ok(Looked::Large);
    }
    Ok(Looked::Found(Some((task, numbered_input(db, no)?))))
}

/// The id under which a task is looked up.
fn named(db: &Connection, lookup: &Lookup) -> Outcome<Option<TaskId>> {
    let chosen = match &lookup.key {
        Some(key) => submitted(db, &lookup.tenant, key)?.map(|(_, id)| id),
        None => None,
    };
    Ok(chosen.or(lookup.id))
}

/// The same as [`look_up`], or how much there is to read if that is more than so many bytes.
pub(super) fn look_up_small(db: &Connection, lookup: &Lookup, most: usize) -> Outcome<LookedUp> {
    if let Looked::Found(found) = look_up(db, lookup, most)? {
        return Ok(LookedUp::Small(found));
    }
    let Some(task) = named(db, lookup)? else { return Ok(LookedUp::Small(None)) };
    if whose(db, task)?.as_ref() != Some(&lookup.tenant) {
        return Ok(LookedUp::Small(None));
    }
    let input = if lookup.input { input_size(db, task)? } else { None };
    Ok(LookedUp::Large { task, bytes: task_size(db, task)?.unwrap_or(0) + input.unwrap_or(0) })
}

pub(super) fn input_size(db: &Connection, id: TaskId) -> Outcome<Option<u64>> {
    match number(db, id)? {
        Some(no) => numbered_size(db, no),
        None => Ok(None),
    }
}

pub(super) fn numbered_size(db: &Connection, no: i64) -> Outcome<Option<u64>> {
    let sql = "SELECT coalesce(octet_length(placements), 0) + octet_length(workflow) + \
               coalesce(octet_length(extra), 0), text FROM input_row WHERE no = ?";
    one(db, sql, (no,), |row| {
        let here = u64::try_from(row.get::<_, i64>(0)?).unwrap_or(0);
        let Some(text) = row.get::<_, Option<i64>>(1)? else { return Ok(here) };
        Ok(here + (pieces::size(db, text, Part::First)? + pieces::size(db, text, Part::Beside)?) as u64)
    })
}

/// What a task runs, if it has no more than this many bytes.
pub(super) fn input_within(db: &Connection, id: TaskId, most: usize) -> Outcome<Looked<Option<TaskInput>>> {
    match number(db, id)? {
        Some(no) if is_larger(db, no, most)? => Ok(Looked::Large),
        Some(no) => Ok(Looked::Found(numbered_input(db, no)?)),
        None => Ok(Looked::Found(None)),
    }
}

fn is_larger(db: &Connection, no: i64, most: usize) -> Outcome<bool> {
    let size = numbered_size(db, no)?.unwrap_or(0);
    Ok(usize::try_from(size).map_or(true, |size| size > most))
}

fn numbered_input(db: &Connection, no: i64) -> Outcome<Option<TaskInput>> {
    let sql = "SELECT input_row.placements, input_row.workflow, input_row.extra, input_row.text, lane.requires \
               FROM input_row JOIN lane ON lane.id = input_row.lane WHERE input_row.no = ?";
    one(db, sql, (no,), |row| RawInput::read(row, Arc::new(rows::requires(row, 4)?))?.fill(db)?.parse())
}

/// The last attempts, unless their failures have more than this many bytes.
pub(super) fn attempts(
    db: &Connection,
    id: TaskId,
    limit: u32,
    most: usize,
) -> Outcome<Looked<Option<Vec<Attempt>>>> {
    let Some(no) = number(db, id)? else {
        return Ok(Looked::Found(None));
    };
    let sql = "SELECT n, owner, worker, prompt_id, started_at, ended_at, outcome, failure, gpu_ms FROM attempt \
               WHERE no = ? ORDER BY n DESC LIMIT ?";
    let found = as_much(db, (sql, (no, limit)), (most, ATTEMPTS_TEXT), 7, |row| rows::attempt(id, row))?;
    let Looked::Found(mut attempts) = found else { return Ok(Looked::Large) };
    let sql = concat!("SELECT ", lease_columns!(), " FROM lease WHERE no = ?");
    attempts.splice(..0, one(db, sql, (no,), rows::lease)?.map(rows::attempt_under_way));
    attempts.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    attempts.reverse();
    Ok(Looked::Found(Some(attempts)))
}

pub(super) fn lease(db: &Connection, id: TaskId) -> Outcome<Option<Lease>> {
    let Some(no) = number(db, id)? else {
        return Ok(None);
    };
    let sql = concat!("SELECT ", lease_columns!(), " FROM lease WHERE no = ?");
    Ok(one(db, sql, (no,), rows::lease)?.map(|found| found.lease))
}

pub(super) fn leases(db: &Connection, worker: &WorkerId) -> Outcome<Vec<Lease>> {
    let sql = concat!("SELECT ", lease_columns!(), " FROM lease WHERE worker = ? ORDER BY started_at, task");
    all(db, sql, (worker.as_str(),), |row| Ok(rows::lease(row)?.lease))
}

pub(super) fn leases_for(db: &Connection, owner: OwnerId, worker: &WorkerId) -> Outcome<Vec<Lease>> {
    let sql = "SELECT 1 FROM worker WHERE id = ? AND owner = ? AND held";
    let held = one(db, sql, (worker.as_str(), owner.0.as_bytes()), |_| Ok(()))?;
    held.ok_or(Error::Fenced)?;
    leases(db, worker)
}

/// What happened to a task, unless that has more than this many bytes.
pub(super) fn events(
    db: &Connection,
    id: TaskId,
    after: Version,
    limit: u32,
    most: usize,
) -> Outcome<Looked<Option<Vec<TaskEvent>>>> {
    let sql = "SELECT no, created_at FROM task WHERE id = ?";
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, rows::moment(row.get(1)?)?));
    let Some((no, created_at)) = one(db, sql, (id.0.as_bytes(),), read)? else {
        return Ok(Looked::Found(None));
    };
    let sql = "SELECT n, at, kind, data FROM event_row WHERE no = ? AND n > ? ORDER BY n LIMIT ?";
    let found = as_much(db, (sql, (no, after, limit)), (most, EVENTS_TEXT), 3, |row| rows::event(id, row))?;
    let Looked::Found(mut events) = found else { return Ok(Looked::Large) };
    if after < 1 && events.first().is_none_or(|event| event.n > 1) {
        events.insert(0, rows::first_event(id, created_at));
        events.truncate(limit as usize);
    }
    Ok(Looked::Found(Some(events)))
}

pub(super) fn counts(db: &Connection, tenant: Option<&Tenant>) -> Outcome<Counts> {
    let sql = "SELECT status, sum(n) FROM count WHERE ?1 IS NULL OR tenant = ?1 GROUP BY status";
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
    let mut counts = Counts::default();
    for (status, n) in all(db, sql, (tenant.map(Tenant::as_str),), read)? {
        match status.parse().map_err(|error| corrupt("a counter", error))? {
            Status::Pending => counts.pending = n,
            Status::Running => counts.running = n,
            Status::Completed => counts.completed = n,
            Status::Failed => counts.failed = n,
            Status::Cancelled => counts.cancelled = n,
        }
    }
    Ok(counts)
}

/// What a tenant has in the store.
pub(super) fn usage(db: &Connection, tenant: &Tenant) -> Outcome<Usage> {
    let read = |sql: &str| -> Outcome<i64> {
        let found = db.prepare_cached(sql)?.query_row((tenant.as_str(),), |row| row.get(0));
        Ok(found.optional()?.unwrap_or(0))
    };
    Ok(Usage {
        waiting: read("SELECT n FROM count WHERE tenant = ? AND status = 'pending'")?,
        bytes: read("SELECT bytes FROM stored WHERE tenant = ?")?,
    })
}

/// How many tasks are before this one: in its own lane, and in those that every worker that can run it also serves.
/// What the lanes ask for is known without reading it: there may be many, and many who ask.
pub(super) fn position(db: &Connection, known: &Shared, id: TaskId) -> Outcome<Option<Position>> {
    let Some(task) = brief(db, id)?.filter(|task| task.reason == Some(PendingReason::Queued)) else {
        return Ok(None);
    };
    let needs = match known.requires(&task.lane) {
        Some(needs) => needs,
        // It ended a moment ago.
        None => match lanes::stored(db, &task.lane)? {
            Some((needs, _)) => Arc::new(needs),
            None => return Ok(None),
        },
    };
    let (mut lanes, all) = known.within(&needs, COUNTED_LANES);
    if !all && !lanes.contains(&task.lane) {
        lanes.push(task.lane.clone());
    }
    let mut position = Position { ahead: 0, exact: all };
    for lane in &lanes {
        let (ahead, exact) = ahead_in(db, lane, &task)?;
        position.ahead += ahead;
        position.exact &= exact;
    }
    position.exact &= position.ahead <= COUNTED;
    Ok(Some(position))
}

fn ahead_in(db: &Connection, lane: &LaneId, task: &Task) -> Outcome<(i64, bool)> {
    let sql = "SELECT count(*), min(rank), max(rank) FROM (SELECT rank FROM task INDEXED BY task_queued \
               WHERE reason = 'queued' AND lane = ?1 AND rank <= ?2 AND (rank < ?2 OR priority > ?3 \
               OR (priority = ?3 AND id < ?4)) ORDER BY rank LIMIT ?5)";
    let params = params![lane.as_str(), task.rank, task.priority.get(), task.id.0.as_bytes(), COUNTED + 1];
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?, row.get(2)?));
    let (count, first, last): (i64, Option<i64>, Option<i64>) =
        db.prepare_cached(sql)?.query_row(params, |row| read(row))?;
    let (Some(first), Some(last)) = (first, last) else {
        return Ok((0, true));
    };
    if count <= COUNTED {
        return Ok((count, true));
    }
    // As dense further back as in what was counted.
    let seen = i128::from(last) - i128::from(first);
    let whole = i128::from(task.rank) - i128::from(first);
    let estimate = i128::from(count) * whole / seen.max(1);
    Ok((i64::try_from(estimate).unwrap_or(i64::MAX).max(count), false))
}

pub(super) fn workers(db: &Connection) -> Outcome<Vec<Worker>> {
    let sql = "SELECT spec, report, owner, fence, until, created_at, last_active_at FROM worker ORDER BY id";
    all(db, sql, (), rows::worker)
}

/// Whether this was an owner before keys were part of them.
pub(super) fn is_former_owner(db: &Connection, owner: OwnerId) -> Outcome<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM former_owner WHERE owner = ?)";
    Ok(db.prepare_cached(sql)?.query_row((owner.0.as_bytes(),), |row| row.get(0))?)
}

pub(super) fn registrants(db: &Connection) -> Outcome<HashMap<WorkerId, KeyId>> {
    let mut statement = db.prepare_cached("SELECT worker, key FROM registration WHERE key IS NOT NULL")?;
    let mut rows = statement.query(())?;
    let mut found = HashMap::new();
    while let Some(row) = rows.next()? {
        let worker = WorkerId::new(row.get::<_, String>(0)?).map_err(|error| corrupt("a worker", error))?;
        found.insert(worker, KeyId(Uuid::from_bytes(row.get(1)?)));
    }
    Ok(found)
}

pub(super) fn object_info(db: &Connection, hash: Sha256) -> Outcome<Option<String>> {
    let sql = "SELECT json FROM object_info WHERE hash = ?";
    Ok(db.prepare_cached(sql)?.query_row((hash.0,), |row| row.get(0)).optional()?)
}

pub(super) fn keys(db: &Connection) -> Outcome<Vec<KeyRecord>> {
    let sql =
        "SELECT id, name, tenant, scopes, hash, created_at, revoked_at FROM key ORDER BY created_at, id";
    all(db, sql, (), rows::key)
}

pub(super) fn submitted(db: &Connection, tenant: &Tenant, key: &str) -> Outcome<Option<(Sha256, TaskId)>> {
    let sql = "SELECT request, task FROM idem WHERE tenant = ? AND key = ?";
    one(db, sql, (tenant.as_str(), key), |row| Ok((Sha256(row.get(0)?), TaskId(rows::uuid(row, 1)?))))
}

pub(super) fn asset(db: &Connection, tenant: &Tenant, sha256: Sha256) -> Outcome<Option<Asset>> {
    // Somebody may give it any number of names.
    let sql = "SELECT * FROM (SELECT tenant, sha256, key, filename, mime, size, created_at FROM asset \
               WHERE tenant = ? AND sha256 = ? ORDER BY filename LIMIT 64) ORDER BY created_at DESC LIMIT 1";
    one(db, sql, (tenant.as_str(), sha256.0), rows::asset)
}

/// Running tasks are few, and looked at each time: one that begins while others are looked at is not missed.
pub(super) fn asset_use(
    db: &Connection,
    tenant: &Tenant,
    sha256: Sha256,
    after: Option<TaskId>,
    limit: u32,
) -> Outcome<AssetUse> {
    let hash = sha256.to_string();
    let sql = "SELECT lease.task FROM lease JOIN task ON task.id = lease.task \
               JOIN input_row ON input_row.no = lease.no WHERE tenant = ? AND instr(placements, ?) LIMIT 1";
    if let Some(task) = one(db, sql, (tenant.as_str(), &hash), |row| Ok(TaskId(rows::uuid(row, 0)?)))? {
        return Ok(AssetUse::By(task));
    }
    let after = after.map_or(uuid::Uuid::nil(), |after| after.0);
    let sql = "SELECT id, coalesce(instr(placements, ?2) > 0, 0) FROM task JOIN input_row ON input_row.no = task.no \
               WHERE tenant = ?1 AND status = 'pending' AND id > ?3 ORDER BY id LIMIT ?4";
    let read = |row: &Row<'_>| Ok((TaskId(rows::uuid(row, 0)?), row.get::<_, bool>(1)?));
    let seen = all(db, sql, (tenant.as_str(), &hash, after.as_bytes(), limit), read)?;
    Ok(match seen.iter().find(|(_, uses)| *uses) {
        Some((task, _)) => AssetUse::By(*task),
        None => match seen.last() {
            Some((last, _)) if seen.len() >= limit as usize => AssetUse::After(*last),
            _ => AssetUse::Unused,
        },
    })
}

/// From one tenant to the next in the index, which does not begin with the content.
pub(super) fn unknown_assets(db: &Connection, contents: &[Sha256]) -> Outcome<Vec<Sha256>> {
    let sql = "WITH RECURSIVE whose (t) AS (SELECT min(tenant) FROM asset UNION ALL \
               SELECT (SELECT min(tenant) FROM asset WHERE tenant > t) FROM whose WHERE t IS NOT NULL) \
               SELECT EXISTS (SELECT 1 FROM whose CROSS JOIN asset ON tenant = t AND sha256 = ?)";
    let mut statement = db.prepare_cached(sql)?;
    let mut unknown = Vec::new();
    for content in contents {
        if !statement.query_row((content.0,), |row| row.get::<_, bool>(0))? {
            unknown.push(*content);
        }
    }
    Ok(unknown)
}

pub(super) fn asset_named(db: &Connection, tenant: &Tenant, filename: &str) -> Outcome<Option<Asset>> {
    let sql = "SELECT tenant, sha256, key, filename, mime, size, created_at FROM asset \
               WHERE tenant = ? AND filename = ? ORDER BY created_at DESC LIMIT 1";
    one(db, sql, (tenant.as_str(), filename), rows::asset)
}

/// The newest under each name: from one name to the next in the index, however often something else was uploaded under each.
pub(super) fn assets(db: &Connection, tenant: &Tenant, limit: u32) -> Outcome<Vec<Asset>> {
    let sql = "WITH RECURSIVE name (f) AS (SELECT min(filename) FROM asset WHERE tenant = ?1 UNION ALL \
               SELECT (SELECT min(filename) FROM asset WHERE tenant = ?1 AND filename > f) FROM name \
               WHERE f IS NOT NULL LIMIT ?2 + 1) \
               SELECT tenant, sha256, key, filename, mime, size, created_at FROM name JOIN asset ON tenant = ?1 \
               AND filename = f AND sha256 = (SELECT sha256 FROM asset WHERE tenant = ?1 AND filename = f \
               ORDER BY created_at DESC LIMIT 1) WHERE f IS NOT NULL ORDER BY f LIMIT ?2";
    all(db, sql, (tenant.as_str(), limit), rows::asset)
}

pub(super) fn unswept(db: &Connection, limit: u32) -> Outcome<Vec<Task>> {
    let sql = concat!(
        "SELECT ",
        task_columns!(),
        " FROM sweep JOIN task ON task.id = sweep.task ORDER BY sweep.no LIMIT ?"
    );
    let mut statement = db.prepare_cached(sql)?;
    let mut found = statement.query((limit,))?;
    let (mut tasks, mut text) = (Vec::new(), 0);
    while let Some(row) = found.next()?
        && text < UNSWEPT_TEXT
    {
        text += rows::text_size(row)?;
        tasks.push(rows::task(row)?.task);
    }
    Ok(tasks)
}

pub(super) fn outdated(db: &Connection, now: Timestamp, age: Duration, limit: u32) -> Outcome<Vec<TaskId>> {
    let Ok(before) = now.checked_sub(age) else {
        return Ok(Vec::new());
    };
    let sql =
        "SELECT id FROM task WHERE finished_at IS NOT NULL AND finished_at < ? ORDER BY finished_at LIMIT ?";
    all(db, sql, (micros(before), limit), |row| Ok(TaskId(rows::uuid(row, 0)?)))
}
