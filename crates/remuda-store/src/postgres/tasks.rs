//! Reading tasks, and the changes that callers other than runners ask for.

use postgres_types::Type;
use remuda_core::{
    Attempt, Lease, PendingReason, Status, Task, TaskEvent, TaskId, TaskInput, Tenant, Version, transition,
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::columns::{Columns, each};
use super::fault::Fault;
use super::inner::Inner;
use super::rows::{self, get, lease_columns, living_texts, no_texts, task_columns};
use super::save::{Save, Tidings};
use super::session::{Transaction, attempt};
use crate::requests::MOST_TEXT;
use crate::store::{ATTEMPTS_TEXT, EVENTS_TEXT};
use crate::{Counts, Error, Glance, ListQuery, LookedUp, Lookup, Page, Position, Result};

/// Positions are counted up to this.
const EXACT: i64 = 1000;

/// What was read, unless it is large: that takes a while, and waits in the line of whoever it is. What the database keeps in
/// 8 KiB is not large; it may have packed that.
#[derive(Debug)]
pub(super) enum Weighed<T> {
    Small(T),
    Large(Tenant),
}

/// The columns of a task with the texts of [`small_texts`], and whether it is small.
macro_rules! small_task_columns {
    () => {
        concat!(task_columns!("t", "x"), ", x.small")
    };
}

/// The long texts of a task `t`, if it and what else is asked for are small.
macro_rules! small_texts {
    ($also:literal) => {
        concat!(
            " CROSS JOIN LATERAL (SELECT coalesce(pg_column_size(t.error), 0) \
             + coalesce(pg_column_size(t.result), 0) + coalesce(pg_column_size(t.metadata), 0) <= 8192 AND ",
            $also,
            " AS small) y CROSS JOIN LATERAL (SELECT y.small, CASE WHEN y.small THEN t.error END AS error, \
             CASE WHEN y.small THEN t.result END AS result, CASE WHEN y.small THEN t.metadata END AS metadata) x"
        )
    };
}

fn wanted(lookup: &Lookup) -> Columns<'_> {
    Columns::default()
        .with(Type::TEXT, lookup.tenant.as_str())
        .with(Type::TEXT, lookup.key.as_deref())
        .with(Type::UUID, lookup.id.map(|id| id.0))
        .with(Type::BOOL, lookup.input)
}

/// Locks a task.
pub(super) async fn lock(transaction: &Transaction, id: TaskId) -> Result<Task, Fault> {
    let tasks = lock_all(transaction, &[id.0]).await?;
    let missing = || Error::NotFound { what: "task", id: id.to_string() };
    tasks.into_iter().next().ok_or_else(|| missing().into())
}

/// Locks tasks in the order of their ids. Those that have ended come without what they left.
pub(super) async fn lock_all(transaction: &Transaction, ids: &[Uuid]) -> Result<Vec<Task>, Fault> {
    const LOCK: &str = concat!(
        "SELECT ",
        task_columns!("t", "x"),
        " FROM remuda.task t",
        living_texts!(),
        " WHERE t.id = ANY($1) ORDER BY t.id FOR UPDATE OF t"
    );
    rows::tasks(&transaction.query(LOCK, &[(&ids, Type::UUID_ARRAY)]).await?)
}

impl Inner {
    pub(super) async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        attempt!(self.sessions, self.read_task(id))
    }

    async fn read_task(&self, id: TaskId) -> Result<Option<Task>, Fault> {
        const TASK: &str = concat!("SELECT ", task_columns!("t"), " FROM remuda.task t WHERE t.id = $1");
        let rows = self.sessions.query(TASK, &[(&id.0, Type::UUID)]).await?;
        rows::read(rows, |rows| rows.first().map(rows::task).transpose()).await
    }

    /// Tasks without their long texts.
    pub(super) async fn briefly(&self, ids: &[TaskId]) -> Result<Vec<Task>> {
        const TASKS: &str = concat!(
            "SELECT ",
            task_columns!("t", "n"),
            " FROM remuda.task t",
            no_texts!(),
            " WHERE t.id = ANY($1)"
        );
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let read = async || {
            let rows = self.sessions.query(TASKS, &[(&ids, Type::UUID_ARRAY)]).await?;
            rows.iter().map(rows::task).collect::<Result<Vec<Task>, Fault>>()
        };
        attempt!(self.sessions, read())
    }

    /// A task, without what is long if it is large.
    pub(super) async fn glance(&self, id: TaskId) -> Result<Option<Glance>> {
        const TASK: &str = concat!(
            "SELECT ",
            small_task_columns!(),
            " FROM remuda.task t",
            small_texts!("true"),
            " WHERE t.id = $1"
        );
        let read = async || {
            let rows = self.sessions.query(TASK, &[(&id.0, Type::UUID)]).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            let task = rows::task(row)?;
            Ok(Some(if get(row, rows::TASK_COLUMNS)? { Glance::of(task) } else { Glance::brief(task) }))
        };
        attempt!(self.sessions, read())
    }

    /// Whose a task is.
    pub(super) async fn whose(&self, id: TaskId) -> Result<Option<Tenant>> {
        let read = async || {
            let statement = "SELECT tenant FROM remuda.task WHERE id = $1";
            let rows = self.sessions.query(statement, &[(&id.0, Type::UUID)]).await?;
            rows.first().map(|row| rows::parse(row, 0)).transpose()
        };
        attempt!(self.sessions, read())
    }

    /// The same as [`Self::look_up`], unless what it finds is large.
    pub(super) async fn small_look_up(
        &self,
        lookup: &Lookup,
    ) -> Result<Weighed<Option<(Task, Option<TaskInput>)>>> {
        const LOOK_UP: &str = concat!(
            "SELECT CASE WHEN x.small THEN i.workflow END, i.placements, i.requires, \
             CASE WHEN x.small THEN i.extra END, ",
            small_task_columns!(),
            " FROM remuda.task t LEFT JOIN remuda.task_input i ON $4 AND i.task = t.id",
            small_texts!(
                "coalesce(pg_column_size(i.workflow), 0) + coalesce(pg_column_size(i.extra), 0) <= 8192"
            ),
            " WHERE t.tenant = $1 \
             AND t.id = coalesce((SELECT task FROM remuda.idem WHERE tenant = $1 AND key = $2), $3)"
        );
        let read = async || {
            let rows = self.sessions.query(LOOK_UP, &wanted(lookup).params()).await?;
            let Some(row) = rows.first() else { return Ok(Weighed::Small(None)) };
            let task = rows::task_at(row, 4)?;
            if !get::<bool>(row, 4 + rows::TASK_COLUMNS)? {
                return Ok(Weighed::Large(task.tenant));
            }
            let has_input = get::<Option<&str>>(row, 0)?.is_some();
            let input = has_input.then(|| rows::input_at(row, 0)).transpose()?;
            Ok(Weighed::Small(Some((task, input))))
        };
        attempt!(self.sessions, read())
    }

    /// How much there is to read of what is looked up.
    pub(super) async fn weigh(&self, lookup: &Lookup) -> Result<LookedUp> {
        const WEIGH: &str = "SELECT t.id, coalesce(octet_length(t.error::text), 0)::bigint \
            + coalesce(octet_length(t.metadata::text), 0) + coalesce(octet_length(t.result::text), 0) \
            + coalesce(octet_length(i.workflow), 0) + coalesce(octet_length(i.extra), 0) \
            FROM remuda.task t LEFT JOIN remuda.task_input i ON $4 AND i.task = t.id WHERE t.tenant = $1 \
            AND t.id = coalesce((SELECT task FROM remuda.idem WHERE tenant = $1 AND key = $2), $3)";
        let read = async || {
            let rows = self.sessions.query(WEIGH, &wanted(lookup).params()).await?;
            let Some(row) = rows.first() else { return Ok(LookedUp::Small(None)) };
            let bytes: i64 = get(row, 1)?;
            Ok(LookedUp::Large { task: TaskId(get(row, 0)?), bytes: u64::try_from(bytes).unwrap_or(0) })
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn look_up(&self, lookup: &Lookup) -> Result<Option<(Task, Option<TaskInput>)>> {
        const LOOK_UP: &str = concat!(
            "SELECT i.workflow, i.placements, i.requires, i.extra, ",
            task_columns!("t"),
            " FROM remuda.task t LEFT JOIN remuda.task_input i ON $4 AND i.task = t.id WHERE t.tenant = $1 \
             AND t.id = coalesce((SELECT task FROM remuda.idem WHERE tenant = $1 AND key = $2), $3)"
        );
        let read = async || {
            let rows = self.sessions.query(LOOK_UP, &wanted(lookup).params()).await?;
            let found = |rows: &[Row]| {
                let Some(row) = rows.first() else { return Ok(None) };
                let has_input = get::<Option<&str>>(row, 0)?.is_some();
                let input = has_input.then(|| rows::input_at(row, 0)).transpose()?;
                Ok(Some((rows::task_at(row, 4)?, input)))
            };
            rows::read(rows, found).await
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn task_size(&self, id: TaskId) -> Result<Option<u64>> {
        let read = async || {
            let statement = "SELECT coalesce(octet_length(error::text), 0)::bigint + \
                coalesce(octet_length(metadata::text), 0) + coalesce(octet_length(result::text), 0) \
                FROM remuda.task WHERE id = $1";
            let rows = self.sessions.query(statement, &[(&id.0, Type::UUID)]).await?;
            let size: Option<i64> = rows.first().map(|row| get(row, 0)).transpose()?;
            Ok(size.map(|size| u64::try_from(size).unwrap_or(0)))
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn input_size(&self, id: TaskId) -> Result<Option<u64>> {
        let read = async || {
            let statement = "SELECT octet_length(placements::text)::bigint + octet_length(workflow) + \
                coalesce(octet_length(extra), 0) FROM remuda.task_input WHERE task = $1";
            let rows = self.sessions.query(statement, &[(&id.0, Type::UUID)]).await?;
            let size: Option<i64> = rows.first().map(|row| get(row, 0)).transpose()?;
            Ok(size.map(|size| u64::try_from(size).unwrap_or(0)))
        };
        attempt!(self.sessions, read())
    }

    /// What a task runs, or whose it is if that is large.
    pub(super) async fn small_input(&self, id: TaskId) -> Result<Weighed<Option<TaskInput>>> {
        let read = async || {
            let statement = "SELECT CASE WHEN x.small THEN i.workflow END, i.placements, i.requires, \
                CASE WHEN x.small THEN i.extra END, t.tenant, x.small FROM remuda.task_input i \
                JOIN remuda.task t ON t.id = i.task CROSS JOIN LATERAL (SELECT pg_column_size(i.workflow) \
                + coalesce(pg_column_size(i.extra), 0) <= 8192 AS small) x WHERE i.task = $1";
            let rows = self.sessions.query(statement, &[(&id.0, Type::UUID)]).await?;
            let Some(row) = rows.first() else { return Ok(Weighed::Small(None)) };
            match get(row, 5)? {
                true => rows::input_at(row, 0).map(|input| Weighed::Small(Some(input))),
                false => Ok(Weighed::Large(rows::parse(row, 4)?)),
            }
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn input(&self, id: TaskId) -> Result<Option<TaskInput>> {
        let read = async || {
            let statement =
                "SELECT workflow, placements, requires, extra FROM remuda.task_input WHERE task = $1";
            let rows = self.sessions.query(statement, &[(&id.0, Type::UUID)]).await?;
            rows.first().map(|row| rows::input_at(row, 0)).transpose()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn attempts(&self, id: TaskId, limit: u32) -> Result<Vec<Attempt>> {
        let read = async || {
            // The attempt under way is its lease.
            let statement = "SELECT task, n, owner, worker, prompt_id, started_at, ended_at, outcome, failure, gpu_ms \
                FROM (SELECT a.*, sum(coalesce(octet_length(failure::text), 0)) OVER (ORDER BY n DESC \
                ROWS UNBOUNDED PRECEDING) - coalesce(octet_length(failure::text), 0) AS before FROM ( \
                SELECT task, n, owner, worker, prompt_id, started_at, ended_at, outcome, failure, gpu_ms \
                FROM remuda.attempt WHERE task = $1 UNION ALL SELECT task, attempt, owner, worker, prompt_id, \
                started_at, NULL, NULL, NULL, NULL FROM remuda.lease WHERE task = $1 ORDER BY 2 DESC LIMIT $2) a) b \
                WHERE before < $3 ORDER BY n DESC";
            let params = Columns::default()
                .with(Type::UUID, id.0)
                .with(Type::INT8, i64::from(limit))
                .with(Type::INT8, i64::try_from(ATTEMPTS_TEXT).unwrap_or(i64::MAX));
            let rows = self.sessions.query(statement, &params.params()).await?;
            rows.iter().rev().map(rows::attempt).collect()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn lease(&self, id: TaskId) -> Result<Option<Lease>> {
        const LEASE: &str = concat!("SELECT ", lease_columns!(), " FROM remuda.lease l WHERE l.task = $1");
        let read = async || {
            let rows = self.sessions.query(LEASE, &[(&id.0, Type::UUID)]).await?;
            rows.first().map(rows::lease).transpose()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn events(&self, id: TaskId, after: Version, limit: u32) -> Result<Vec<TaskEvent>> {
        let read = async || {
            let statement = "SELECT task, n, at, kind, data FROM (SELECT e.*, sum(octet_length(data::text)) OVER \
                (ORDER BY n ROWS UNBOUNDED PRECEDING) - octet_length(data::text) AS before FROM ( \
                SELECT task, n, at, kind, data FROM remuda.task_event WHERE task = $1 AND n > $2 \
                ORDER BY n LIMIT $3) e) f WHERE before < $4 ORDER BY n";
            let params = Columns::default()
                .with(Type::UUID, id.0)
                .with(Type::INT8, after)
                .with(Type::INT8, i64::from(limit))
                .with(Type::INT8, i64::try_from(EVENTS_TEXT).unwrap_or(i64::MAX));
            let rows = self.sessions.query(statement, &params.params()).await?;
            rows.iter().map(rows::event).collect()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn list(&self, query: &ListQuery) -> Result<Page> {
        attempt!(self.sessions, self.read_page(query))
    }

    /// A page is merged from one range of an index for each tenant and state that is wanted.
    async fn read_page(&self, query: &ListQuery) -> Result<Page, Fault> {
        // With what was found and how much text it has: a page ends where that is too much.
        macro_rules! page {
            ($ids:literal) => {
                concat!(
                    "SELECT * FROM (SELECT ",
                    task_columns!("t"),
                    ", row_number() OVER w AS n, count(*) OVER () AS found, \
                     sum(coalesce(octet_length(t.error::text), 0) + coalesce(octet_length(t.result::text), 0) \
                     + coalesce(octet_length(t.metadata::text), 0)) OVER w AS bytes FROM remuda.task t JOIN (",
                    $ids,
                    ") p ON p.id = t.id WINDOW w AS (ORDER BY t.id DESC ROWS UNBOUNDED PRECEDING)) s \
                     WHERE s.n < $2 AND (s.n = 1 OR s.bytes <= $3) ORDER BY s.id DESC"
                )
            };
        }
        const ALL: &str = page!("SELECT i.id FROM remuda.task i WHERE i.id < $1 ORDER BY i.id DESC LIMIT $2");
        const SOME: &str = page!(
            "SELECT c.id FROM (SELECT unnest(coalesce($4, \
             ARRAY(SELECT tenant FROM remuda.tenant))) AS tenant) a CROSS JOIN unnest($5) AS b(status) \
             CROSS JOIN LATERAL (SELECT i.id FROM remuda.task i WHERE i.tenant = a.tenant AND i.status = b.status \
             AND i.id < $1 ORDER BY i.id DESC LIMIT $2) c ORDER BY c.id DESC LIMIT $2"
        );
        const OF_WORKFLOW: &str = page!(
            "SELECT c.id FROM (SELECT unnest(coalesce($4, \
             ARRAY(SELECT tenant FROM remuda.tenant))) AS tenant) a CROSS JOIN unnest($5) AS b(status) \
             CROSS JOIN LATERAL (SELECT i.id FROM remuda.task i WHERE i.workflow_id = $6 AND i.tenant = a.tenant \
             AND i.status = b.status AND i.id < $1 ORDER BY i.id DESC LIMIT $2) c ORDER BY c.id DESC LIMIT $2"
        );
        let tenants: Option<Vec<&str>> = query.tenant.as_ref().map(|tenant| vec![tenant.as_str()]);
        let statuses = query.status.map_or(Status::ALL.to_vec(), |status| vec![status]);
        let mut params = Columns::default()
            .with(Type::UUID, query.before.map_or(Uuid::max(), |before| before.0))
            .with(Type::INT8, i64::from(query.limit) + 1)
            .with(Type::INT8, i64::try_from(MOST_TEXT).unwrap_or(i64::MAX));
        let narrow = query.tenant.is_some() || query.status.is_some() || query.workflow_id.is_some();
        if narrow {
            params = params
                .with(Type::TEXT_ARRAY, tenants)
                .with(Type::TEXT_ARRAY, each(&statuses, |status| status.as_str()));
        }
        let statement = match &query.workflow_id {
            Some(workflow) => {
                params = params.with(Type::TEXT, workflow.as_str());
                OF_WORKFLOW
            }
            None if narrow => SOME,
            None => ALL,
        };
        let transaction = self.sessions.begin().await?;
        let found = transaction.query(statement, &params.params()).await?;
        transaction.commit().await?;
        let all: i64 = found.first().map_or(Ok(0), |row| get(row, rows::TASK_COLUMNS + 1))?;
        let tasks = rows::read(found, rows::tasks).await?;
        Ok(Page { more: i64::try_from(tasks.len()).unwrap_or(i64::MAX) < all, tasks })
    }

    pub(super) async fn position(&self, id: TaskId) -> Result<Option<Position>> {
        attempt!(self.sessions, self.read_position(id))
    }

    async fn read_position(&self, id: TaskId) -> Result<Option<Position>, Fault> {
        let Some(task) = self.read_task(id).await? else { return Ok(None) };
        if task.reason != Some(PendingReason::Queued) {
            return Ok(None);
        }
        let (lanes, all) = self.lanes.within(&task.lane);
        let params = Columns::default()
            .with(Type::TEXT_ARRAY, each(&lanes, |lane| lane.as_str()))
            .with(Type::INT8, task.rank)
            .with(Type::INT4, 9 - i32::from(task.priority.get()))
            .with(Type::UUID, task.id.0)
            .with(Type::INT8, EXACT + 1);
        let statement = "SELECT count(*), min(c.rank), max(c.rank) FROM (SELECT c.rank FROM unnest($1) AS u(lane) \
            CROSS JOIN LATERAL (SELECT t.rank FROM remuda.task t WHERE t.lane = u.lane AND t.reason = 'queued' \
            AND (t.rank, 9 - t.priority, t.id) < ($2, $3, $4) ORDER BY t.rank, 9 - t.priority, t.id LIMIT $5) c \
            ORDER BY c.rank LIMIT $5) c";
        let transaction = self.sessions.begin().await?;
        let rows = transaction.query(statement, &params.params()).await?;
        transaction.commit().await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let counted: i64 = get(row, 0)?;
        if counted <= EXACT {
            return Ok(Some(Position { ahead: counted, exact: all }));
        }
        // The head of the queue shows how many tasks there are to a stretch of ranks.
        let (first, last): (i64, i64) = (get(row, 1)?, get(row, 2)?);
        let waiting = self.read_counts(None).await?.pending;
        let stretch = i128::from(last.saturating_sub(first)).max(1);
        let way = i128::from(task.rank.saturating_sub(first)).max(0);
        let guess = i64::try_from(i128::from(counted) * way / stretch).unwrap_or(i64::MAX);
        Ok(Some(Position { ahead: guess.min(waiting - 1).max(counted), exact: false }))
    }

    pub(super) async fn counts(&self, tenant: Option<&Tenant>) -> Result<Counts> {
        attempt!(self.sessions, self.read_counts(tenant))
    }

    async fn read_counts(&self, tenant: Option<&Tenant>) -> Result<Counts, Fault> {
        let statement = "SELECT coalesce(sum(pending), 0)::bigint, coalesce(sum(running), 0)::bigint, \
            coalesce(sum(completed), 0)::bigint, coalesce(sum(failed), 0)::bigint, \
            coalesce(sum(cancelled), 0)::bigint FROM remuda.counter WHERE $1 IS NULL OR tenant = $1";
        let rows = self.sessions.query(statement, &[(&tenant.map(Tenant::as_str), Type::TEXT)]).await?;
        let Some(row) = rows.first() else { return Ok(Counts::default()) };
        Ok(Counts {
            pending: get(row, 0)?,
            running: get(row, 1)?,
            completed: get(row, 2)?,
            failed: get(row, 3)?,
            cancelled: get(row, 4)?,
        })
    }

    pub(super) async fn cancel(&self, id: TaskId) -> Result<Task> {
        let done: Result<(Task, Tidings)> = attempt!(self.sessions, self.try_cancel(id));
        let (task, tidings) = done?;
        self.announce(tidings);
        Ok(task)
    }

    async fn try_cancel(&self, id: TaskId) -> Result<(Task, Tidings), Fault> {
        let transaction = self.sessions.begin().await?;
        let (now, mut task) = (transaction.now, lock(&transaction, id).await?);
        let before = task.status;
        let event = match transition::cancel(&mut task, now) {
            Ok(Some(event)) => event,
            Ok(None) => {
                transaction.rollback().await?;
                return Ok((task, Tidings::default()));
            }
            Err(transition::NotPossible(status)) => {
                transaction.rollback().await?;
                return Err(Error::Finished(status).into());
            }
        };
        let mut save = Save::default();
        save.changed(before, &task, Some(event), now);
        if task.status == Status::Running {
            save.news(id);
        }
        let tidings = save.commit_in(transaction, self.side_shard()).await?;
        Ok((task, tidings))
    }

    pub(super) async fn hasten(&self, id: TaskId) -> Result<Task> {
        let done: Result<(Task, Tidings)> = attempt!(self.sessions, self.try_hasten(id));
        let (task, tidings) = done?;
        self.announce(tidings);
        Ok(task)
    }

    async fn try_hasten(&self, id: TaskId) -> Result<(Task, Tidings), Fault> {
        let transaction = self.sessions.begin().await?;
        let (now, mut task) = (transaction.now, lock(&transaction, id).await?);
        if task.status.is_terminal() {
            transaction.rollback().await?;
            return Err(Error::Finished(task.status).into());
        }
        if !transition::release(&mut task, now) {
            transaction.rollback().await?;
            return Ok((task, Tidings::default()));
        }
        let mut save = Save::default();
        save.changed(task.status, &task, None, now);
        let tidings = save.commit_in(transaction, self.side_shard()).await?;
        Ok((task, tidings))
    }
}
