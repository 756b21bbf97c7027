//! Tasks of a dialect: their lists, their numbers, and which of them are shown.
//!
//! As with other lists every state has its own range of an index, in order; SQLite merges the ranges. Skipped and counted are
//! entries of an index, never rows.

use remuda_core::{Dialect, Status, TaskId, Tenant};
use rusqlite::{Connection, named_params, params};

use super::batch::Batch;
use super::fault::{Outcome, corrupt};
use super::reads::{self, all};
use super::rows::{self, micros};
use crate::{OriginOrder, OriginPage, OriginQuery};

/// What all tasks that are listed have in common.
const LISTED: &str = "dialect IS NOT NULL AND hidden_at IS NULL AND tenant = :tenant AND dialect = :dialect \
    AND (:client IS NULL OR client = :client) AND (:workflow IS NULL OR workflow_id = :workflow)";

/// A page, and how many there are.
pub(super) fn list(db: &Connection, query: &OriginQuery) -> Outcome<OriginPage> {
    let statuses = query.wanted();
    if statuses.is_empty() {
        return Ok(OriginPage::default());
    }
    let mut tasks = Vec::new();
    for id in page(db, query, &statuses)? {
        // All in one snapshot.
        tasks.push(
            reads::brief(db, id)?.ok_or_else(|| corrupt("an index", "it names a task that is not there"))?,
        );
    }
    Ok(OriginPage { tasks, total: total(db, query, &statuses)? })
}

/// The statement that gives the ids of a page.
fn page_sql(order: OriginOrder, statuses: &[Status]) -> String {
    let (index, columns, only, by) = match order {
        OriginOrder::OldestFirst => ("task_origin", "id", "", "id"),
        OriginOrder::NewestFirst => ("task_origin", "id", "", "id DESC"),
        OriginOrder::FirstEnded => ("task_origin_ended", "id, finished_at", ENDED, "finished_at, id"),
        OriginOrder::LastEnded => {
            ("task_origin_ended", "id, finished_at", ENDED, "finished_at DESC, id DESC")
        }
    };
    let range = |status: &Status| {
        format!("SELECT {columns} FROM task INDEXED BY {index} WHERE {LISTED} {only} AND status = '{status}'")
    };
    let ranges: Vec<String> = statuses.iter().map(range).collect();
    format!("{} ORDER BY {by} LIMIT :limit OFFSET :offset", ranges.join(" UNION ALL "))
}

const ENDED: &str = "AND finished_at IS NOT NULL";

fn page(db: &Connection, query: &OriginQuery, statuses: &[Status]) -> Outcome<Vec<TaskId>> {
    let params = named_params! {
        ":tenant": query.tenant.as_str(),
        ":dialect": query.dialect.as_str(),
        ":client": query.client,
        ":workflow": query.workflow_id,
        ":limit": query.limit,
        ":offset": query.offset,
    };
    all(db, &page_sql(query.order, statuses), params, |row| Ok(TaskId(rows::uuid(row, 0)?)))
}

/// The statement that counts what all pages have together.
fn total_sql(statuses: &[Status]) -> String {
    let names: Vec<String> = statuses.iter().map(|status| format!("'{status}'")).collect();
    let names = names.join(", ");
    format!("SELECT count(*) FROM task INDEXED BY task_origin WHERE {LISTED} AND status IN ({names})")
}

fn total(db: &Connection, query: &OriginQuery, statuses: &[Status]) -> Outcome<i64> {
    let params = named_params! {
        ":tenant": query.tenant.as_str(),
        ":dialect": query.dialect.as_str(),
        ":client": query.client,
        ":workflow": query.workflow_id,
    };
    Ok(db.prepare_cached(&total_sql(statuses))?.query_row(params, |row| row.get(0))?)
}

/// How many have not ended, of all clients.
const UNFINISHED: &str = "SELECT count(*) FROM task INDEXED BY task_origin_open WHERE dialect IS NOT NULL \
    AND finished_at IS NULL AND tenant = ? AND dialect = ?";

/// How many have not ended, of one client.
const UNFINISHED_OF: &str = "SELECT count(*) FROM task INDEXED BY task_origin_open WHERE dialect IS NOT NULL \
    AND finished_at IS NULL AND tenant = ? AND dialect = ? AND client = ?";

pub(super) fn unfinished(
    db: &Connection,
    tenant: &Tenant,
    dialect: Dialect,
    client: Option<&str>,
) -> Outcome<i64> {
    let (tenant, dialect) = (tenant.as_str(), dialect.as_str());
    let count = |row: &rusqlite::Row<'_>| row.get(0);
    Ok(match client {
        None => db.prepare_cached(UNFINISHED)?.query_row((tenant, dialect), count)?,
        Some(client) => db.prepare_cached(UNFINISHED_OF)?.query_row((tenant, dialect, client), count)?,
    })
}

/// Some ended tasks that are shown.
const SHOWN: &str = "SELECT id FROM task INDEXED BY task_origin_ended WHERE dialect IS NOT NULL \
    AND hidden_at IS NULL AND finished_at IS NOT NULL AND tenant = ? AND dialect = ? \
    AND status IN ('completed', 'failed', 'cancelled') LIMIT ?";

impl Batch<'_> {
    /// Takes at most this many ended tasks out of the lists.
    pub(super) fn hide_ended(&mut self, tenant: &Tenant, dialect: Dialect, limit: u64) -> Outcome<u64> {
        let params = (tenant.as_str(), dialect.as_str(), i64::try_from(limit).unwrap_or(i64::MAX));
        let shown = all(self.db, SHOWN, params, |row| Ok(TaskId(rows::uuid(row, 0)?)))?;
        self.hide(tenant, dialect, &shown)
    }

    /// Takes these tasks out of the lists, those of them that have ended and are shown.
    pub(super) fn hide(&mut self, tenant: &Tenant, dialect: Dialect, tasks: &[TaskId]) -> Outcome<u64> {
        let sql = "UPDATE task SET hidden_at = ? WHERE id = ? AND tenant = ? AND dialect = ? \
                   AND finished_at IS NOT NULL AND hidden_at IS NULL";
        let mut statement = self.db.prepare_cached(sql)?;
        let mut hidden = 0;
        for task in tasks {
            let params = params![micros(self.now), task.0.as_bytes(), tenant.as_str(), dialect.as_str()];
            hidden += u64::try_from(statement.execute(params)?).unwrap_or(0);
        }
        Ok(hidden)
    }
}

#[cfg(test)]
mod tests;
