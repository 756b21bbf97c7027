//! Tasks of a dialect: their lists, their numbers, and which of them are shown.
//!
//! As with other lists a page is merged from one range of an index for each state that is wanted. Skipped and counted are
//! entries of an index.

use postgres_types::Type;
use remuda_core::{Dialect, TaskId, Tenant};
use uuid::Uuid;

use super::columns::{Columns, each};
use super::fault::Fault;
use super::inner::Inner;
use super::rows::{self, get, no_texts, task_columns};
use super::session::attempt;
use crate::{Hide, OriginOrder, OriginPage, OriginQuery, Result};

/// How many are hidden in one transaction.
const HIDDEN_AT_ONCE: usize = 500;

/// Ranges come in order from their index, whatever the server believes of how many there are.
const RANGES: &str = "SET LOCAL enable_bitmapscan = off";

/// What all tasks that are listed have in common. `$1` to `$5`: tenant, dialect, states, client, workflow.
macro_rules! listed {
    () => {
        "i.dialect IS NOT NULL AND i.hidden_at IS NULL AND i.tenant = $1 AND i.dialect = $2 \
         AND ($4 IS NULL OR i.client = $4) AND ($5 IS NULL OR i.workflow_id = $5)"
    };
}

/// A page in one of the orders. `$6` to `$8`: how many of each state, how many of all, and how many are skipped.
macro_rules! page {
    ($columns:literal, $only:literal, $inner:literal, $outer:literal) => {
        concat!(
            "SELECT ",
            task_columns!("t", "n"),
            " FROM (SELECT c.* FROM unnest($3) AS b(status) CROSS JOIN LATERAL (SELECT ",
            $columns,
            " FROM remuda.task i WHERE ",
            listed!(),
            $only,
            " AND i.status = b.status ORDER BY ",
            $inner,
            " LIMIT $6) c ORDER BY ",
            $outer,
            " LIMIT $7 OFFSET $8) c JOIN remuda.task t ON t.id = c.id",
            no_texts!(),
            " ORDER BY ",
            $outer
        )
    };
}

const OLDEST_FIRST: &str = page!("i.id", "", "i.id", "c.id");
const NEWEST_FIRST: &str = page!("i.id", "", "i.id DESC", "c.id DESC");
const FIRST_ENDED: &str = page!(
    "i.id, i.finished_at",
    " AND i.finished_at IS NOT NULL",
    "i.finished_at, i.id",
    "c.finished_at, c.id"
);
const LAST_ENDED: &str = page!(
    "i.id, i.finished_at",
    " AND i.finished_at IS NOT NULL",
    "i.finished_at DESC, i.id DESC",
    "c.finished_at DESC, c.id DESC"
);

const TOTAL: &str =
    concat!("SELECT count(*) FROM remuda.task i WHERE ", listed!(), " AND i.status = ANY($3)");

const UNFINISHED: &str = "SELECT count(*) FROM remuda.task i WHERE i.dialect IS NOT NULL AND i.finished_at IS NULL \
    AND i.tenant = $1 AND i.dialect = $2 AND ($3 IS NULL OR i.client = $3)";

const HIDE: &str = "WITH shown AS (SELECT i.id FROM remuda.task i WHERE i.id = ANY($3) AND i.tenant = $1 \
    AND i.dialect = $2 AND i.hidden_at IS NULL AND i.finished_at IS NOT NULL ORDER BY i.id FOR UPDATE) \
    UPDATE remuda.task t SET hidden_at = $4 FROM shown WHERE t.id = shown.id";

const SHOWN: &str = "SELECT i.id FROM remuda.task i WHERE i.dialect IS NOT NULL AND i.hidden_at IS NULL \
    AND i.finished_at IS NOT NULL AND i.tenant = $1 AND i.dialect = $2 \
    AND i.status IN ('completed', 'failed', 'cancelled') LIMIT $3";

impl Inner {
    pub(super) async fn list_origin(&self, query: &OriginQuery) -> Result<OriginPage> {
        attempt!(self.sessions, self.read_origin(query))
    }

    async fn read_origin(&self, query: &OriginQuery) -> Result<OriginPage, Fault> {
        let statuses = query.wanted();
        if statuses.is_empty() {
            return Ok(OriginPage::default());
        }
        let listed = || {
            Columns::default()
                .with(Type::TEXT, query.tenant.as_str())
                .with(Type::TEXT, query.dialect.as_str())
                .with(Type::TEXT_ARRAY, each(&statuses, |status| status.as_str()))
                .with(Type::TEXT, query.client.as_deref())
                .with(Type::TEXT, query.workflow_id.as_deref())
        };
        let statement = match query.order {
            OriginOrder::OldestFirst => OLDEST_FIRST,
            OriginOrder::NewestFirst => NEWEST_FIRST,
            OriginOrder::FirstEnded => FIRST_ENDED,
            OriginOrder::LastEnded => LAST_ENDED,
        };
        let (limit, offset) = (i64::from(query.limit), i64::from(query.offset));
        let page = listed().with(Type::INT8, limit + offset).with(Type::INT8, limit).with(Type::INT8, offset);
        let transaction = self.sessions.begin().await?;
        let (page, total) = (page.params(), listed());
        let total = total.params();
        let client = transaction.client()?;
        let (set, tasks, total) = tokio::join!(
            biased;
            client.batch_execute(RANGES),
            transaction.query(statement, &page),
            transaction.query(TOTAL, &total)
        );
        set?;
        let (tasks, total) = (rows::tasks(&tasks?)?, total?);
        transaction.commit().await?;
        let total = total.first().map_or(Ok(0), |row| get(row, 0))?;
        Ok(OriginPage { tasks, total })
    }

    pub(super) async fn unfinished(
        &self,
        tenant: &Tenant,
        dialect: Dialect,
        client: Option<&str>,
    ) -> Result<i64> {
        let read = async || {
            let params = Columns::default()
                .with(Type::TEXT, tenant.as_str())
                .with(Type::TEXT, dialect.as_str())
                .with(Type::TEXT, client);
            let transaction = self.sessions.begin().await?;
            let rows = transaction.query(UNFINISHED, &params.params()).await?;
            transaction.commit().await?;
            rows.first().map_or(Ok(0), |row| get(row, 0))
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn hide(&self, tenant: &Tenant, dialect: Dialect, which: &Hide) -> Result<u64> {
        let mut hidden = 0;
        match which {
            Hide::Tasks(tasks) => {
                for some in tasks.chunks(HIDDEN_AT_ONCE) {
                    hidden += self.hide_some(tenant, dialect, some).await?;
                }
            }
            Hide::Ended => loop {
                let shown: Result<Vec<TaskId>> = attempt!(self.sessions, self.shown(tenant, dialect));
                let shown = shown?;
                hidden += self.hide_some(tenant, dialect, &shown).await?;
                if shown.len() < HIDDEN_AT_ONCE {
                    break;
                }
            },
        }
        Ok(hidden)
    }

    async fn shown(&self, tenant: &Tenant, dialect: Dialect) -> Result<Vec<TaskId>, Fault> {
        let params = Columns::default()
            .with(Type::TEXT, tenant.as_str())
            .with(Type::TEXT, dialect.as_str())
            .with(Type::INT8, i64::try_from(HIDDEN_AT_ONCE).unwrap_or(i64::MAX));
        let transaction = self.sessions.begin().await?;
        let rows = transaction.query(SHOWN, &params.params()).await?;
        transaction.commit().await?;
        rows.iter().map(|row| get(row, 0).map(TaskId)).collect()
    }

    async fn hide_some(&self, tenant: &Tenant, dialect: Dialect, tasks: &[TaskId]) -> Result<u64> {
        let ids: Vec<Uuid> = each(tasks, |task| task.0);
        let hide = async || {
            let transaction = self.sessions.begin().await?;
            let params = Columns::default()
                .with(Type::TEXT, tenant.as_str())
                .with(Type::TEXT, dialect.as_str())
                .with(Type::UUID_ARRAY, ids.as_slice())
                .with(Type::TIMESTAMPTZ, transaction.now);
            let hidden = transaction.execute(HIDE, &params.params()).await?;
            transaction.commit().await?;
            Ok(hidden)
        };
        attempt!(self.sessions, hide())
    }
}

#[cfg(test)]
mod tests;
