//! Housekeeping: what time alone brings about, and removing what is over.

use std::time::Duration;

use postgres_types::Type;
use remuda_core::{Task, TaskId, Tenant, Timestamp, transition};
use uuid::Uuid;

use super::columns::{Columns, each};
use super::fault::Fault;
use super::inner::Inner;
use super::rows::{self, get, task_columns};
use super::save::{Save, Tidings};
use super::session::attempt;
use crate::turns::size_of_result;
use crate::{Result, Tidied};

/// How many tasks at once, so that no transaction is long.
const CHUNK: i64 = 500;
/// How many chunks in one go; the rest is for the next.
const ROUNDS: usize = 40;

/// After this many bytes of results no further task is read whose files are to be swept.
const UNSWEPT_TEXT: usize = 8 << 20;

const DUE: &str = concat!(
    "SELECT ",
    task_columns!("t"),
    " FROM remuda.task t WHERE t.reason IN ('scheduled', 'retry') AND t.run_at <= $1 ORDER BY t.run_at LIMIT $2 \
     FOR UPDATE SKIP LOCKED"
);

const EXPIRED: &str = concat!(
    "SELECT ",
    task_columns!("t"),
    " FROM remuda.task t WHERE t.status = 'pending' AND t.deadline IS NOT NULL AND t.deadline <= $1 \
     ORDER BY t.deadline LIMIT $2 FOR UPDATE SKIP LOCKED"
);

const NEXT: &str = "SELECT least((SELECT t.run_at FROM remuda.task t WHERE t.reason IN ('scheduled', 'retry') \
    ORDER BY t.run_at LIMIT 1), (SELECT t.deadline FROM remuda.task t WHERE t.status = 'pending' \
    AND t.deadline IS NOT NULL ORDER BY t.deadline LIMIT 1))";

impl Inner {
    pub(super) async fn tidy(&self) -> Result<Tidied> {
        let mut tidied = Tidied::default();
        let expire = |save: &mut Save, mut task: Task, now: Timestamp| {
            let before = task.status;
            if let Ok(event) = transition::expire(&mut task, now) {
                save.changed(before, &task, Some(event), now);
            }
        };
        tidied.expired = self.each_due(EXPIRED, expire).await?;
        let release = |save: &mut Save, mut task: Task, now: Timestamp| {
            if transition::release(&mut task, now) {
                save.changed(task.status, &task, None, now);
            }
        };
        tidied.released = self.each_due(DUE, release).await?;
        tidied.lost = self.lose_overdue().await?;
        tidied.next = attempt!(self.sessions, self.next_due())?;
        Ok(tidied)
    }

    async fn each_due(
        &self,
        statement: &str,
        change: impl Fn(&mut Save, Task, Timestamp) + Send + Sync,
    ) -> Result<u64> {
        let mut count = 0;
        for _ in 0..ROUNDS {
            let done: Result<(u64, Tidings)> = attempt!(self.sessions, self.chunk(statement, &change));
            let (changed, tidings) = done?;
            self.announce(tidings);
            count += changed;
            if changed < CHUNK.unsigned_abs() {
                break;
            }
        }
        Ok(count)
    }

    async fn chunk(
        &self,
        statement: &str,
        change: &(impl Fn(&mut Save, Task, Timestamp) + Send + Sync),
    ) -> Result<(u64, Tidings), Fault> {
        let transaction = self.sessions.begin().await?;
        let now = transaction.now;
        let params = Columns::default().with(Type::TIMESTAMPTZ, now).with(Type::INT8, CHUNK);
        let tasks = rows::tasks(&transaction.query(statement, &params.params()).await?)?;
        let mut save = Save::default();
        for task in tasks {
            change(&mut save, task, now);
        }
        if save.tasks.is_empty() {
            transaction.rollback().await?;
            return Ok((0, Tidings::default()));
        }
        let changed = u64::try_from(save.tasks.len()).unwrap_or(u64::MAX);
        let tidings = save.commit_in(transaction, self.side_shard()).await?;
        Ok((changed, tidings))
    }

    async fn lose_overdue(&self) -> Result<Vec<TaskId>> {
        let overdue: Result<Vec<Uuid>> = attempt!(self.sessions, self.overdue());
        let mut lost = Vec::new();
        for chunk in overdue?.chunks(usize::try_from(CHUNK).unwrap_or(1)) {
            let done: Result<(Vec<TaskId>, Tidings)> = attempt!(self.sessions, self.lose(chunk));
            let (some, tidings) = done?;
            self.announce(tidings);
            lost.extend(some);
        }
        Ok(lost)
    }

    /// Tasks whose leases nobody renewed and nobody adopted. Whether that is still so is decided under their locks.
    async fn overdue(&self) -> Result<Vec<Uuid>, Fault> {
        let transaction = self.sessions.begin().await?;
        let adoption = self.sessions.options().policy.adoption;
        let limit = transaction.now.checked_sub(adoption).unwrap_or(Timestamp::MIN);
        let mut ids = Vec::new();
        // Nothing could be adopted before it was settled, so from then on there is time for that.
        if self.sessions.is_settled_for(&transaction, adoption).await? {
            let statement = "SELECT task FROM remuda.lease WHERE until < $1 ORDER BY task LIMIT 5000";
            let rows = transaction.query(statement, &[(&limit, Type::TIMESTAMPTZ)]).await?;
            ids = rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
        }
        transaction.rollback().await?;
        Ok(ids)
    }

    async fn next_due(&self) -> Result<Option<Timestamp>, Fault> {
        let transaction = self.sessions.begin().await?;
        let rows = transaction.query(NEXT, &[]).await?;
        transaction.commit().await?;
        rows.first().map_or(Ok(None), |row| get(row, 0))
    }

    pub(super) async fn unswept(&self, limit: u32) -> Result<Vec<Task>> {
        const UNSWEPT: &str = "SELECT s.task FROM remuda.sweep s ORDER BY s.at, s.task LIMIT $1";
        let read = async || {
            let rows = self.sessions.query(UNSWEPT, &[(&i64::from(limit), Type::INT8)]).await?;
            rows.iter().map(|row| get(row, 0).map(TaskId)).collect()
        };
        let ids: Result<Vec<TaskId>> = attempt!(self.sessions, read());
        let (mut tasks, mut text) = (Vec::new(), 0);
        // One by one: their results may be large.
        for id in ids? {
            let task = self.task(id).await?;
            text += task.as_ref().and_then(|task| task.result.as_ref()).map_or(0, size_of_result);
            tasks.extend(task);
            if text > UNSWEPT_TEXT {
                break;
            }
        }
        Ok(tasks)
    }

    pub(super) async fn swept(&self, tasks: &[TaskId]) -> Result<()> {
        let ids = each(tasks, |task| task.0);
        let delete = async || {
            let statement = "DELETE FROM remuda.sweep WHERE task = ANY($1)";
            self.sessions.query(statement, &[(&ids, Type::UUID_ARRAY)]).await.map(|_| ())
        };
        attempt!(self.sessions, delete())
    }

    pub(super) async fn outdated(&self, age: Duration, limit: u32) -> Result<Vec<TaskId>> {
        attempt!(self.sessions, self.read_outdated(age, limit))
    }

    async fn read_outdated(&self, age: Duration, limit: u32) -> Result<Vec<TaskId>, Fault> {
        let transaction = self.sessions.begin().await?;
        let before = transaction.now.checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH);
        let params = Columns::default().with(Type::TIMESTAMPTZ, before).with(Type::INT8, i64::from(limit));
        let statement = "SELECT id FROM remuda.task WHERE finished_at IS NOT NULL AND finished_at < $1 \
            ORDER BY finished_at, id LIMIT $2";
        let rows = transaction.query(statement, &params.params()).await?;
        transaction.commit().await?;
        rows.iter().map(|row| get(row, 0).map(TaskId)).collect()
    }

    pub(super) async fn forget(&self, tasks: &[TaskId]) -> Result<u64> {
        let mut count = 0;
        for chunk in tasks.chunks(usize::try_from(CHUNK).unwrap_or(1)) {
            let ids = each(chunk, |task| task.0);
            let done: Result<u64> = attempt!(self.sessions, self.try_forget(&ids));
            count += done?;
        }
        Ok(count)
    }

    async fn try_forget(&self, ids: &[Uuid]) -> Result<u64, Fault> {
        let transaction = self.sessions.begin().await?;
        let statement = "WITH over AS (SELECT id FROM remuda.task WHERE id = ANY($1) AND finished_at IS NOT NULL \
            ORDER BY id FOR UPDATE) DELETE FROM remuda.task t USING over WHERE t.id = over.id \
            RETURNING t.id, t.tenant, t.status";
        let rows = transaction.query(statement, &[(&ids, Type::UUID_ARRAY)]).await?;
        let mut save = Save::default();
        let mut gone: Vec<Uuid> = Vec::new();
        for row in &rows {
            gone.push(get(row, 0)?);
            let tenant = Tenant::new(get::<String>(row, 1)?);
            let tenant = tenant.map_err(|error| crate::Error::Corrupt(error.to_string()))?;
            let status = get::<String>(row, 2)?.parse().map_err(crate::Error::Corrupt)?;
            save.count(&tenant, Some(status), None);
        }
        if gone.is_empty() {
            transaction.rollback().await?;
            return Ok(0);
        }
        for statement in [
            "DELETE FROM remuda.task_input WHERE task = ANY($1)",
            "DELETE FROM remuda.attempt WHERE task = ANY($1)",
            "DELETE FROM remuda.task_event WHERE task = ANY($1)",
            "DELETE FROM remuda.idem WHERE task = ANY($1)",
            "DELETE FROM remuda.sweep WHERE task = ANY($1)",
            "DELETE FROM remuda.harm WHERE task = ANY($1)",
        ] {
            transaction.execute(statement, &[(&gone, Type::UUID_ARRAY)]).await?;
        }
        save.commit_in(transaction, self.side_shard()).await?;
        Ok(u64::try_from(gone.len()).unwrap_or(0))
    }
}
