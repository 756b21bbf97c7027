//! The head of the queue.

use std::collections::{BTreeMap, BTreeSet};

use remuda_core::schedule::{AFFINITY_WINDOW, Candidate};
use remuda_core::{LaneId, Priority, TaskId, WorkerId};
use rusqlite::Row;

use super::batch::Batch;
use super::fault::{Outcome, corrupt};
use super::rows::{self, micros};

/// What a choice needs to know; the index `task_queued` has all of it.
macro_rules! candidates {
    ($rest:literal) => {
        concat!(
            "SELECT id, lane, rank, priority, affinity, avoid_worker, avoid_until, run_at FROM task \
             INDEXED BY task_queued WHERE reason = 'queued' AND lane = ?1 ",
            $rest
        )
    };
}

/// The first tasks of some lanes.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// In the order of the queue.
    pub(super) candidates: Vec<Candidate>,
    /// There are more in these lanes.
    pub(super) cut: BTreeSet<LaneId>,
}

impl Batch<'_> {
    /// The first tasks of these lanes, this many of each.
    pub(super) fn window(&self, lanes: &BTreeMap<LaneId, usize>) -> Outcome<Window> {
        let mut window = Window::default();
        for (id, &limit) in lanes {
            let sql = candidates!("ORDER BY lane, rank, priority DESC, id LIMIT ?2");
            let mut statement = self.db.prepare_cached(sql)?;
            let mut found = statement.query((id.as_str(), i64::try_from(limit).unwrap_or(i64::MAX)))?;
            let before = window.candidates.len();
            while let Some(row) = found.next()? {
                window.candidates.push(candidate(row, micros(self.now))?);
            }
            let fresh = window.candidates.get(before..).unwrap_or_default();
            if fresh.len() >= limit {
                window.cut.insert(id.clone());
            }
        }
        if lanes.len() > 1 {
            window.candidates.sort_by(|a, b| a.order().cmp(&b.order()));
        }
        Ok(window)
    }

    /// The first tasks of a lane that do not avoid this worker, and this many more.
    pub(super) fn window_for(&self, id: &LaneId, worker: &WorkerId, more: usize) -> Outcome<Vec<Candidate>> {
        let sql = candidates!(
            "AND NOT (avoid_worker IS ?2 AND coalesce(avoid_until, 0) > ?3) \
             ORDER BY lane, rank, priority DESC, id LIMIT ?4"
        );
        let limit = i64::try_from(AFFINITY_WINDOW + more).unwrap_or(i64::MAX);
        let now = micros(self.now);
        let mut statement = self.db.prepare_cached(sql)?;
        let mut found = statement.query((id.as_str(), worker.as_str(), now, limit))?;
        let mut candidates = Vec::new();
        while let Some(row) = found.next()? {
            candidates.push(candidate(row, now)?);
        }
        Ok(candidates)
    }
}

fn candidate(row: &Row<'_>, now: i64) -> Outcome<Candidate> {
    // Before the worker's name is read: most tasks avoid nobody.
    let avoids = row.get::<_, Option<i64>>(6)?.is_some_and(|until| until > now);
    Ok(Candidate {
        id: TaskId(rows::uuid(row, 0)?),
        lane: LaneId::from_stored(row.get(1)?),
        rank: row.get(2)?,
        priority: Priority::new(row.get(3)?).map_err(|error| corrupt("a priority", error))?,
        affinity: row.get(4)?,
        avoid: if avoids { rows::opt_worker_id(row, 5)? } else { None },
        since: rows::moment(row.get(7)?)?,
    })
}
