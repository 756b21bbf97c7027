//! What is to be done outside when tasks have ended: who does it, and what became of it. When it falls due is decided where
//! tasks end, by the triggers of the file.

use std::time::Duration;

use remuda_core::errand::in_short;
use remuda_core::{Errand, ErrandRecord, ErrandRef, ErrandState, NewTask, TakenErrand, TaskId, Tenant};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::batch::Batch;
use super::fault::{Outcome, corrupt};
use super::reads;
use super::rows::{self, json_text, micros};

impl Batch<'_> {
    /// Keeps the errands of a new task.
    pub(super) fn insert_errands(&self, new: &NewTask) -> Outcome<()> {
        let sql = "INSERT INTO errand (task, n, tenant, errand, upon) VALUES (?, ?, ?, ?, ?)";
        for (n, errand) in (0_i32..).zip(&new.errands) {
            self.db.prepare_cached(sql)?.execute(params![
                new.id.0.as_bytes(),
                n,
                new.tenant.as_str(),
                json_text(errand)?,
                errand.upon().as_str(),
            ])?;
        }
        Ok(())
    }

    /// Gives errands to somebody who does them, the longest due first.
    pub(super) fn take_errands(
        &mut self,
        limit: u32,
        busy: &[Tenant],
        hold: Duration,
    ) -> Outcome<Vec<TakenErrand>> {
        let mut due = Vec::new();
        let mut tenant = self.next_with_errands("")?;
        while let Some(found) = tenant {
            if !busy.iter().any(|busy| busy.as_str() == found) {
                self.due_of(&found, limit, &mut due)?;
            }
            tenant = self.next_with_errands(&found)?;
        }
        due.sort_by_key(|(due_at, errand)| (*due_at, errand.at.task, errand.at.n));
        due.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let until = micros(self.after(hold));
        for (_, TakenErrand { at, .. }) in &due {
            let sql = "UPDATE errand SET attempts = ?3, due_at = ?4 WHERE task = ?1 AND n = ?2";
            self.db.prepare_cached(sql)?.execute((at.task.0.as_bytes(), at.n, at.attempt, until))?;
        }
        Ok(due.into_iter().map(|(_, errand)| errand).collect())
    }

    /// The first tenant after this one that has something due, now or later: from one to the next in the index.
    fn next_with_errands(&self, after: &str) -> Outcome<Option<String>> {
        let sql = "SELECT tenant FROM errand INDEXED BY errand_due WHERE due_at IS NOT NULL AND tenant > ? \
                   ORDER BY tenant LIMIT 1";
        Ok(self.db.prepare_cached(sql)?.query_row((after,), |row| row.get(0)).optional()?)
    }

    fn due_of(&self, tenant: &str, limit: u32, due: &mut Vec<(i64, TakenErrand)>) -> Outcome<()> {
        let sql = "SELECT task, n, tenant, errand, since, attempts, due_at FROM errand INDEXED BY errand_due \
                   WHERE due_at IS NOT NULL AND tenant = ? AND due_at <= ? ORDER BY due_at LIMIT ?";
        let mut statement = self.db.prepare_cached(sql)?;
        let mut found = statement.query((tenant, micros(self.now), limit))?;
        while let Some(row) = found.next()? {
            let attempt = row.get::<_, i32>(5)?.saturating_add(1);
            let at = ErrandRef { task: TaskId(rows::uuid(row, 0)?), n: row.get(1)?, attempt };
            let (tenant, errand) = (rows::tenant(row, 2)?, errand(row, 3)?);
            let since = rows::moment(row.get(4)?)?;
            due.push((row.get(6)?, TakenErrand { at, tenant, errand, since }));
        }
        Ok(())
    }

    /// Whoever has an errand keeps it for longer.
    pub(super) fn hold_errand(&mut self, at: ErrandRef, hold: Duration) -> Outcome<bool> {
        let sql =
            "UPDATE errand SET due_at = ?4 WHERE task = ?1 AND n = ?2 AND attempts = ?3 AND over_at IS NULL";
        let params = (at.task.0.as_bytes(), at.n, at.attempt, micros(self.after(hold)));
        Ok(self.db.prepare_cached(sql)?.execute(params)? > 0)
    }

    /// It is done.
    pub(super) fn finish_errand(&mut self, at: ErrandRef) -> Outcome<bool> {
        let sql = "UPDATE errand SET due_at = NULL, over_at = ?4, error = NULL \
                   WHERE task = ?1 AND n = ?2 AND attempts = ?3 AND over_at IS NULL";
        let params = (at.task.0.as_bytes(), at.n, at.attempt, micros(self.now));
        Ok(self.db.prepare_cached(sql)?.execute(params)? > 0)
    }

    /// A try failed; without a delay there is no other.
    pub(super) fn fail_errand(&mut self, at: ErrandRef, why: &str, delay: Option<Duration>) -> Outcome<bool> {
        let due_at = delay.map(|delay| micros(self.after(delay)));
        let over_at = delay.is_none().then(|| micros(self.now));
        let sql = "UPDATE errand SET due_at = ?4, over_at = ?5, error = ?6 \
                   WHERE task = ?1 AND n = ?2 AND attempts = ?3 AND over_at IS NULL";
        let params = (at.task.0.as_bytes(), at.n, at.attempt, due_at, over_at, in_short(why));
        Ok(self.db.prepare_cached(sql)?.execute(params)? > 0)
    }
}

/// The errands of a task.
pub(super) fn of_task(db: &Connection, task: TaskId) -> Outcome<Vec<ErrandRecord>> {
    let sql = "SELECT n, errand, attempts, due_at, over_at, error FROM errand WHERE task = ? ORDER BY n";
    reads::all(db, sql, (task.0.as_bytes(),), |row| {
        let moment = |i| row.get::<_, Option<i64>>(i)?.map(rows::moment).transpose();
        let (due_at, over_at, error) = (moment(3)?, moment(4)?, row.get::<_, Option<String>>(5)?);
        Ok(ErrandRecord {
            n: row.get(0)?,
            errand: errand(row, 1)?,
            state: ErrandState::of(due_at.is_some(), over_at.is_some(), error.is_some()),
            attempts: row.get(2)?,
            due_at,
            over_at,
            error,
        })
    })
}

fn errand(row: &Row<'_>, i: usize) -> Outcome<Errand> {
    let text: String = row.get(i)?;
    serde_json::from_str(&text).map_err(|error| corrupt("an errand", error))
}
