//! Pages of tasks, newest first, without a scan.
//!
//! Every combination of filters is answered by one range of an index for each tenant and state, merged here: a full
//! index over the state would have to be changed at each step of every task's life, only for lists.

use std::cmp::Reverse;

use remuda_core::{Status, Task, TaskId, Tenant};
use rusqlite::{Connection, Row, params};

use super::fault::{Outcome, corrupt};
use super::reads::all;
use super::rows::{self, task_columns};
use crate::requests::MOST_TEXT;
use crate::{ListQuery, Page};

pub(super) fn list(db: &Connection, query: &ListQuery) -> Outcome<Page> {
    let limit = i64::from(query.limit) + 1;
    let mut ids = if query.tenant.is_none() && query.status.is_none() && query.workflow_id.is_none() {
        newest(db, query, limit)?
    } else {
        filtered(db, query, limit)?
    };
    ids.sort_by_key(|id| Reverse(*id));
    let tasks = read(db, ids.iter().take(query.limit as usize))?;
    Ok(Page { more: tasks.len() < ids.len(), tasks })
}

/// Reads tasks in this order, as long as they have not too much text together.
fn read<'a>(db: &Connection, ids: impl Iterator<Item = &'a TaskId>) -> Outcome<Vec<Task>> {
    let sql = concat!("SELECT ", task_columns!(), " FROM task WHERE id = ?");
    let mut statement = db.prepare_cached(sql)?;
    let (mut tasks, mut size) = (Vec::new(), 0);
    for id in ids {
        let mut found = statement.query((id.0.as_bytes(),))?;
        // All in one snapshot.
        let row = found.next()?.ok_or_else(|| corrupt("an index", "it names a task that is not there"))?;
        size += rows::text_size(row)?;
        if size > MOST_TEXT && !tasks.is_empty() {
            break;
        }
        tasks.push(rows::task(row)?.task);
    }
    Ok(tasks)
}

/// Greater than every id.
const AFTER_ALL: [u8; 17] = [0xff; 17];

fn id(row: &Row<'_>) -> Outcome<TaskId> {
    Ok(TaskId(rows::uuid(row, 0)?))
}

fn before(query: &ListQuery) -> &[u8] {
    query.before.as_ref().map_or(&AFTER_ALL, |id| id.0.as_bytes())
}

fn newest(db: &Connection, query: &ListQuery, limit: i64) -> Outcome<Vec<TaskId>> {
    let sql = "SELECT id FROM task WHERE id < ? ORDER BY id DESC LIMIT ?";
    all(db, sql, (before(query), limit), id)
}

fn filtered(db: &Connection, query: &ListQuery, limit: i64) -> Outcome<Vec<TaskId>> {
    let tenants = match &query.tenant {
        Some(tenant) => vec![tenant.clone()],
        None => all(db, "SELECT DISTINCT tenant FROM count", (), |row| rows::tenant(row, 0))?,
    };
    let mut ids = Vec::new();
    for status in Status::ALL.into_iter().filter(|&status| query.status.is_none_or(|wanted| wanted == status))
    {
        if status == Status::Running {
            ids.extend(running(db, query, limit)?);
            continue;
        }
        for tenant in &tenants {
            ids.extend(of_tenant(db, query, tenant, status, limit)?);
        }
    }
    Ok(ids)
}

/// Running tasks are as few as leases: those are looked through.
fn running(db: &Connection, query: &ListQuery, limit: i64) -> Outcome<Vec<TaskId>> {
    let sql = "SELECT lease.task FROM lease CROSS JOIN task ON task.id = lease.task WHERE lease.task < ?1 \
               AND (?2 IS NULL OR task.tenant = ?2) AND (?3 IS NULL OR task.workflow_id = ?3) \
               ORDER BY lease.task DESC LIMIT ?4";
    let params = params![before(query), query.tenant.as_ref().map(Tenant::as_str), query.workflow_id, limit];
    all(db, sql, params, id)
}

fn of_tenant(
    db: &Connection,
    query: &ListQuery,
    tenant: &Tenant,
    status: Status,
    limit: i64,
) -> Outcome<Vec<TaskId>> {
    let (tenant, before) = (tenant.as_str(), before(query));
    match (status, &query.workflow_id) {
        (Status::Pending, None) => {
            let sql = "SELECT id FROM task INDEXED BY task_pending WHERE status = 'pending' AND tenant = ? AND id < ? \
                 ORDER BY id DESC LIMIT ?";
            all(db, sql, params![tenant, before, limit], id)
        }
        (Status::Pending, Some(workflow)) => {
            let sql = "SELECT id FROM task INDEXED BY task_pending_workflow WHERE status = 'pending' AND tenant = ? \
                 AND workflow_id IS NOT NULL AND workflow_id = ? AND id < ? ORDER BY id DESC LIMIT ?";
            all(db, sql, params![tenant, workflow, before, limit], id)
        }
        (_, None) => {
            let sql = "SELECT id FROM task INDEXED BY task_ended WHERE finished_at IS NOT NULL AND tenant = ? AND status = ? \
                 AND id < ? ORDER BY id DESC LIMIT ?";
            all(db, sql, params![tenant, status.as_str(), before, limit], id)
        }
        (_, Some(workflow)) => {
            let sql = "SELECT id FROM task INDEXED BY task_ended_workflow WHERE finished_at IS NOT NULL AND tenant = ? \
                 AND workflow_id IS NOT NULL AND workflow_id = ? AND status = ? AND id < ? \
                 ORDER BY id DESC LIMIT ?";
            all(db, sql, params![tenant, workflow, status.as_str(), before, limit], id)
        }
    }
}
