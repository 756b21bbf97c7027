//! What is to be done outside when tasks have ended: who does it, and what became of it. When it falls due is decided where
//! tasks end, by the triggers of the database.

use std::time::Duration;

use postgres_types::Type;
use remuda_core::errand::in_short;
use remuda_core::{Errand, ErrandRecord, ErrandRef, ErrandState, TakenErrand, TaskId, Tenant, Timestamp};
use tokio_postgres::Row;

use super::columns::{Columns, each};
use super::fault::Fault;
use super::inner::Inner;
use super::rows::{self, get};
use super::session::attempt;
use crate::{Error, Result};

/// From one tenant to the next in the index, of each the first ones. What somebody else takes at this moment is passed over.
const TAKE: &str = "WITH RECURSIVE whose AS ((SELECT tenant FROM remuda.errand WHERE due_at IS NOT NULL \
    ORDER BY tenant LIMIT 1) UNION ALL SELECT n.tenant FROM whose w CROSS JOIN LATERAL (SELECT e.tenant \
    FROM remuda.errand e WHERE e.due_at IS NOT NULL AND e.tenant > w.tenant ORDER BY e.tenant LIMIT 1) n), \
    due AS (SELECT d.task, d.n FROM whose w CROSS JOIN LATERAL (SELECT e.task, e.n, e.due_at FROM remuda.errand e \
    WHERE e.tenant = w.tenant AND e.due_at <= $3 ORDER BY e.due_at LIMIT $1) d WHERE w.tenant <> ALL($2) \
    ORDER BY d.due_at, d.task, d.n LIMIT $1), \
    mine AS (SELECT e.task, e.n, e.due_at FROM remuda.errand e JOIN due USING (task, n) WHERE e.due_at <= $3 \
    FOR UPDATE OF e SKIP LOCKED) \
    UPDATE remuda.errand AS e SET attempts = e.attempts + 1, due_at = $4 FROM mine \
    WHERE e.task = mine.task AND e.n = mine.n \
    RETURNING e.task, e.n, e.tenant, e.errand, e.since, e.attempts, mine.due_at";

const OF_TASK: &str =
    "SELECT n, errand, attempts, due_at, over_at, error FROM remuda.errand WHERE task = $1 ORDER BY n";

fn after(now: Timestamp, span: Duration) -> Timestamp {
    now.checked_add(span).unwrap_or(Timestamp::MAX)
}

fn tried(at: ErrandRef) -> Columns<'static> {
    Columns::default().with(Type::UUID, at.task.0).with(Type::INT4, at.n).with(Type::INT4, at.attempt)
}

impl Inner {
    pub(super) async fn take_errands(
        &self,
        limit: u32,
        busy: &[Tenant],
        hold: Duration,
    ) -> Result<Vec<TakenErrand>> {
        attempt!(self.sessions, self.try_take_errands(limit, busy, hold))
    }

    async fn try_take_errands(
        &self,
        limit: u32,
        busy: &[Tenant],
        hold: Duration,
    ) -> Result<Vec<TakenErrand>, Fault> {
        let transaction = self.sessions.begin().await?;
        let params = Columns::default()
            .with(Type::INT8, i64::from(limit))
            .with(Type::TEXT_ARRAY, each(busy, Tenant::as_str))
            .with(Type::TIMESTAMPTZ, transaction.now)
            .with(Type::TIMESTAMPTZ, after(transaction.now, hold));
        let rows = transaction.query(TAKE, &params.params()).await?;
        let mut taken = rows.iter().map(taken).collect::<Result<Vec<_>, _>>()?;
        transaction.commit().await?;
        taken.sort_by_key(|(due_at, errand)| (*due_at, errand.at.task, errand.at.n));
        Ok(taken.into_iter().map(|(_, errand)| errand).collect())
    }

    pub(super) async fn hold_errand(&self, at: ErrandRef, hold: Duration) -> Result<bool> {
        let change = "UPDATE remuda.errand SET due_at = $4";
        attempt!(
            self.sessions,
            self.change_errand(change, at, |now, columns| columns.with(Type::TIMESTAMPTZ, after(now, hold)))
        )
    }

    pub(super) async fn finish_errand(&self, at: ErrandRef) -> Result<bool> {
        let change = "UPDATE remuda.errand SET due_at = NULL, over_at = $4, error = NULL";
        attempt!(
            self.sessions,
            self.change_errand(change, at, |now, columns| columns.with(Type::TIMESTAMPTZ, now))
        )
    }

    pub(super) async fn fail_errand(
        &self,
        at: ErrandRef,
        why: &str,
        delay: Option<Duration>,
    ) -> Result<bool> {
        let change = "UPDATE remuda.errand SET due_at = $4, over_at = $5, error = $6";
        attempt!(
            self.sessions,
            self.change_errand(change, at, |now, columns| columns
                .with(Type::TIMESTAMPTZ, delay.map(|delay| after(now, delay)))
                .with(Type::TIMESTAMPTZ, delay.is_none().then_some(now))
                .with(Type::TEXT, in_short(why).to_owned()))
        )
    }

    /// Changes an errand that is still this try's.
    async fn change_errand(
        &self,
        change: &str,
        at: ErrandRef,
        with: impl Fn(Timestamp, Columns<'static>) -> Columns<'static>,
    ) -> Result<bool, Fault> {
        let transaction = self.sessions.begin().await?;
        let statement = format!("{change} WHERE task = $1 AND n = $2 AND attempts = $3 AND over_at IS NULL");
        let columns = with(transaction.now, tried(at));
        let changed = transaction.execute(&statement, &columns.params()).await?;
        transaction.commit().await?;
        Ok(changed > 0)
    }

    pub(super) async fn errands(&self, task: TaskId) -> Result<Vec<ErrandRecord>> {
        let read = async || {
            let rows = self.sessions.query(OF_TASK, &[(&task.0, Type::UUID)]).await?;
            rows.iter().map(record).collect()
        };
        attempt!(self.sessions, read())
    }
}

fn errand(row: &Row, index: usize) -> Result<Errand, Fault> {
    serde_json::from_str(get(row, index)?)
        .map_err(|error| Error::Corrupt(format!("an errand: {error}")).into())
}

/// A row of [`TAKE`], with the moment since which it waits for this try.
fn taken(row: &Row) -> Result<(Timestamp, TakenErrand), Fault> {
    let at = ErrandRef { task: TaskId(get(row, 0)?), n: get(row, 1)?, attempt: get(row, 5)? };
    let errand =
        TakenErrand { at, tenant: rows::parse(row, 2)?, errand: errand(row, 3)?, since: get(row, 4)? };
    Ok((get(row, 6)?, errand))
}

/// A row of [`OF_TASK`].
fn record(row: &Row) -> Result<ErrandRecord, Fault> {
    let (due_at, over_at): (Option<Timestamp>, Option<Timestamp>) = (get(row, 3)?, get(row, 4)?);
    let error: Option<String> = get(row, 5)?;
    Ok(ErrandRecord {
        n: get(row, 0)?,
        errand: errand(row, 1)?,
        state: ErrandState::of(due_at.is_some(), over_at.is_some(), error.is_some()),
        attempts: get(row, 2)?,
        due_at,
        over_at,
        error,
    })
}
