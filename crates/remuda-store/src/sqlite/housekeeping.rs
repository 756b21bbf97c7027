//! What must be done from time to time: release, lose, expire, forget.

use remuda_core::{LaneId, TaskId, Timestamp, transition};
use rusqlite::OptionalExtension as _;

use super::batch::{Batch, Was};
use super::fault::{Outcome, corrupt};
use super::rows::{self, Numbered, micros, task_columns};
use crate::{Change, Tidied};

/// How many tasks are changed in one transaction; the next call does the rest. Others wait for it.
const AT_ONCE: i64 = 250;

/// … or as many as have this much text: it is written again with every change of its task.
const TEXT_AT_ONCE: usize = 1 << 20;

/// How many free pages of a file that shrank are given back to the file system with every call.
const GIVE_BACK: &str = "PRAGMA incremental_vacuum(250)";

impl Batch<'_> {
    /// Releases, loses and expires what is due.
    pub(super) fn tidy(&mut self) -> Outcome<Tidied> {
        let released = self.release()?;
        let expired = self.expire()?;
        let lost = self.lose()?;
        let next = self.next_due()?;
        Ok(Tidied { released, lost, expired, next })
    }

    fn release(&mut self) -> Outcome<u64> {
        let sql = concat!(
            "SELECT ",
            task_columns!(),
            " FROM task WHERE reason IN ('scheduled', 'retry') AND run_at <= ? ORDER BY run_at LIMIT ?"
        );
        let mut released = 0;
        for Numbered { mut task, .. } in self.due(sql)? {
            let was = Was::from(&task);
            if transition::release(&mut task, self.now) {
                self.update_task(&was, &task)?;
                self.changed(Change::of(&task));
                released += 1;
            }
        }
        Ok(released)
    }

    fn expire(&mut self) -> Outcome<u64> {
        let sql = concat!(
            "SELECT ",
            task_columns!(),
            " FROM task WHERE status = 'pending' AND deadline IS NOT NULL AND deadline <= ? \
             ORDER BY deadline LIMIT ?"
        );
        let mut expired = 0;
        for Numbered { no, mut task } in self.due(sql)? {
            let was = Was::from(&task);
            let event =
                transition::expire(&mut task, self.now).map_err(|error| corrupt("a deadline", error))?;
            self.save(no, &was, &task, &event)?;
            expired += 1;
        }
        Ok(expired)
    }

    fn due(&self, sql: &str) -> Outcome<Vec<Numbered>> {
        let mut statement = self.db.prepare_cached(sql)?;
        let mut found = statement.query((micros(self.now), AT_ONCE))?;
        let mut due = Vec::new();
        let mut text = 0;
        while let Some(row) = found.next()?
            && text < TEXT_AT_ONCE
        {
            text += rows::text_size(row)?;
            due.push(rows::task(row)?);
        }
        Ok(due)
    }

    fn next_due(&self) -> Outcome<Option<Timestamp>> {
        let first = |sql: &str| -> Outcome<Option<Timestamp>> {
            let moment = self.db.prepare_cached(sql)?.query_row((), |row| row.get::<_, i64>(0)).optional()?;
            moment.map(rows::moment).transpose()
        };
        let run_at =
            first("SELECT run_at FROM task WHERE reason IN ('scheduled', 'retry') ORDER BY run_at LIMIT 1")?;
        let deadline = first(
            "SELECT deadline FROM task WHERE status = 'pending' AND deadline IS NOT NULL ORDER BY deadline LIMIT 1",
        )?;
        Ok(run_at.into_iter().chain(deadline).min())
    }

    /// The files of these tasks' earlier attempts are gone.
    pub(super) fn swept(&mut self, tasks: &[TaskId]) -> Outcome<()> {
        for task in tasks {
            let sql = "DELETE FROM sweep WHERE no = (SELECT no FROM task WHERE id = ?)";
            self.db.prepare_cached(sql)?.execute((task.0.as_bytes(),))?;
        }
        Ok(())
    }

    /// Removes ended tasks with everything there is of them.
    pub(super) fn forget(&mut self, tasks: &[TaskId]) -> Outcome<u64> {
        let mut forgotten = 0;
        for &id in tasks {
            let Some(Numbered { no, task }) = self.load(id)?.filter(|found| found.task.status.is_terminal())
            else {
                continue;
            };
            let mut lane = None;
            for sql in [
                "DELETE FROM input_row WHERE no = ? RETURNING text, lane",
                "DELETE FROM result_row WHERE no = ? RETURNING text, NULL",
            ] {
                let read = |row: &rusqlite::Row<'_>| {
                    Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<String>>(1)?))
                };
                let gone = self.db.prepare_cached(sql)?.query_row((no,), read).optional()?;
                if let Some((text, came_into)) = gone {
                    self.effects.left_over.extend(text);
                    lane = lane.or(came_into.map(LaneId::from_stored));
                }
            }
            if let Some(lane) = lane {
                self.state.lanes.remove_row(self.db, &lane)?;
            }
            for sql in [
                "DELETE FROM event_row WHERE no = ?",
                "DELETE FROM attempt WHERE no = ?",
                "DELETE FROM sweep WHERE no = ?",
            ] {
                self.db.prepare_cached(sql)?.execute((no,))?;
            }
            for sql in [
                "DELETE FROM idem WHERE task = ?",
                "DELETE FROM harm WHERE task = ?",
                "DELETE FROM task WHERE id = ?",
            ] {
                self.db.prepare_cached(sql)?.execute((id.0.as_bytes(),))?;
            }
            self.state.count(&task.tenant, Some(task.status), None);
            self.state.read_usage_again(&task.tenant);
            forgotten += 1;
        }
        if forgotten > 0 {
            self.db.execute_batch(GIVE_BACK)?;
        }
        Ok(forgotten)
    }
}
