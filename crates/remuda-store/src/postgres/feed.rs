//! Reading the feed. It is written with everything else, see [`super::write`].
//!
//! Transactions are not committed in the order of their numbers. So nobody looks beyond the oldest that is still under way:
//! what is shown is complete, and nothing comes before it any more. No lock is needed for that.

use std::time::Duration;

use postgres_types::Type;
use remuda_core::{FeedPack, Tenant, Timestamp};
use tokio_postgres::Row;

use super::columns::Columns;
use super::fault::{Fault, silent};
use super::inner::Inner;
use super::rows::get;
use super::session::{Sessions, attempt};
use crate::feed::{FeedEnds, FeedPage, FeedPlace, FeedRow, page};
use crate::{Error, Result};

/// How many rows are removed in one transaction.
const REMOVED_AT_ONCE: i64 = 500;

/// As many rows as have the wanted entries: a row has one at least, and may have hundreds. Their lengths say how many there are,
/// without reading them. What is known of the first row does not count.
macro_rules! bounded {
    ($of:literal) => {
        concat!(
            "SELECT xid::text::bigint, seq, tenant, entries FROM (SELECT xid, seq, tenant, entries, ",
            "sum(CASE WHEN (xid, seq) = ($1::text::xid8, $2) THEN 0 ELSE octet_length(entries) / $4 END) ",
            "OVER (ORDER BY xid, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier ",
            "FROM (SELECT xid, seq, tenant, entries FROM remuda.feed WHERE ",
            $of,
            "(xid, seq) >= ($1::text::xid8, $2) AND xid < pg_snapshot_xmin(pg_current_snapshot()) ",
            "ORDER BY xid, seq LIMIT $3) AS found) AS counted ",
            "WHERE coalesce(earlier, 0) < $3 ORDER BY xid, seq"
        )
    };
}

/// Where it begins and ends, on which timeline the server writes, and whether something that is committed is not complete yet.
macro_rules! ends {
    ($timeline:literal) => {
        concat!(
            "SELECT s.epoch, s.removed_xid::text::bigint, s.removed_seq, f.xid::text::bigint, f.seq, ",
            $timeline,
            ", EXISTS (SELECT FROM remuda.feed WHERE xid >= pg_snapshot_xmin(pg_current_snapshot()))",
            " FROM remuda.feed_state s LEFT JOIN LATERAL (SELECT xid, seq FROM remuda.feed ",
            "WHERE xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY xid DESC, seq DESC LIMIT 1) f ON true"
        )
    };
}

/// Nothing while the server is a standby.
const ENDS: &str = ends!(
    "CASE WHEN NOT pg_is_in_recovery() THEN \
     ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END"
);

/// On a server that does not say its timeline.
const ENDS_ANYWHERE: &str = ends!("1::bigint");

/// Whether the server says on which timeline it writes. Some that only speak as PostgreSQL does have none.
const SAYS_TIMELINE: &str = "SELECT CASE WHEN NOT has_function_privilege('pg_walfile_name(pg_lsn)', 'EXECUTE') \
    OR NOT has_function_privilege('pg_current_wal_lsn()', 'EXECUTE') THEN false WHEN pg_is_in_recovery() THEN true \
    ELSE pg_walfile_name(pg_current_wal_lsn()) IS NOT NULL END";

/// How many epochs fit into one timeline.
const EPOCHS: i64 = 1 << 20;

/// All that is complete, from the row on that the place is in. `$1`: its transaction, as text; `$2`: the row; `$3`: one more than
/// the entries that are wanted; `$4`: what an entry takes.
const OF_ALL: &str = bounded!("");

/// The same of one tenant, `$5`.
const OF_TENANT: &str = bounded!("tenant = $5 AND ");

/// Nothing that may still come is before these.
const FIRST: &str = "SELECT xid::text, seq, at FROM remuda.feed WHERE xid < pg_snapshot_xmin(pg_current_snapshot()) \
    ORDER BY xid, seq LIMIT $1";

/// Begins a new epoch if the database was restored into a server whose transactions have lower numbers than those of its rows:
/// what comes now would be sorted before what is there.
pub(super) async fn mend(sessions: &Sessions) -> Result<()> {
    // Of what was removed the place may be beyond that as well: then nothing that comes would ever be after it.
    let statement = "WITH late AS (DELETE FROM remuda.feed WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) \
        RETURNING 1) UPDATE remuda.feed_state s SET epoch = epoch + 1, \
        removed_xid = CASE WHEN s.removed_xid >= pg_snapshot_xmax(pg_current_snapshot()) THEN '0'::xid8 \
        ELSE s.removed_xid END, \
        removed_seq = CASE WHEN s.removed_xid >= pg_snapshot_xmax(pg_current_snapshot()) THEN 0 \
        ELSE s.removed_seq END \
        WHERE EXISTS (SELECT FROM late) OR s.removed_xid >= pg_snapshot_xmax(pg_current_snapshot())";
    let late = "SELECT EXISTS (SELECT FROM remuda.feed WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())) \
        OR EXISTS (SELECT FROM remuda.feed_state WHERE removed_xid >= pg_snapshot_xmax(pg_current_snapshot()))";
    let mended = async || {
        // Nothing is locked, and nothing written, when all is well.
        let rows = sessions.query(late, &[]).await?;
        if rows.first().map(|row| get(row, 0)).transpose()?.unwrap_or(false) {
            sessions.query(statement, &[]).await?;
        }
        Ok::<_, Fault>(())
    };
    attempt!(sessions, mended())
}

/// Whether the server says on which timeline it writes.
pub(super) async fn says_timeline(sessions: &Sessions) -> Result<bool> {
    let asked = async || match sessions.query(SAYS_TIMELINE, &[]).await {
        Ok(rows) => rows.first().map_or(Ok(false), |row| get(row, 0)),
        Err(Fault::Refused(error)) => {
            tracing::debug!(error = %super::fault::words(&error), "the server says no timeline");
            Ok(false)
        }
        Err(fault) => Err(fault),
    };
    attempt!(sessions, asked())
}

impl Inner {
    pub(super) async fn feed_ends(&self) -> Result<FeedEnds> {
        Ok(self.feed_state().await?.0)
    }

    /// Where it begins and ends, and whether something that is committed is not shown yet.
    async fn feed_state(&self) -> Result<(FeedEnds, bool)> {
        let read = async || {
            let statement = if self.says_timeline { ENDS } else { ENDS_ANYWHERE };
            let rows = self.sessions.query(statement, &[]).await?;
            let row = rows.first().ok_or_else(|| Error::Corrupt("the feed has no state".to_owned()))?;
            Ok::<_, Fault>((ends(row)?, get(row, 6)?))
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn feed(
        &self,
        tenant: Option<&Tenant>,
        after: FeedPlace,
        limit: u32,
    ) -> Result<FeedPage> {
        let page: FeedPage = attempt!(self.sessions, self.read_feed(tenant, after, limit))?;
        // Afterwards: what was removed while it was read must not be skipped in silence.
        let (FeedEnds { first, .. }, held) = self.feed_state().await?;
        if after.epoch != first.epoch || after < first {
            return Err(Error::Gone { first });
        }
        Ok(FeedPage { held, ..page })
    }

    async fn read_feed(
        &self,
        tenant: Option<&Tenant>,
        after: FeedPlace,
        limit: u32,
    ) -> Result<FeedPage, Fault> {
        // Every row has an entry at least; the first may be known already. Where rows were left out because of their entries, those
        // that are there have more than are wanted, and the page says that there is more.
        let most = i64::from(limit).saturating_add(1);
        let params = Columns::default()
            .with(Type::TEXT, after.transaction.to_string())
            .with(Type::INT8, after.row)
            .with(Type::INT8, most)
            .with(Type::INT4, i32::try_from(FeedPack::ENTRY).unwrap_or(i32::MAX));
        let found = match tenant {
            None => self.sessions.query(OF_ALL, &params.params()).await?,
            Some(tenant) => {
                let params = params.with(Type::TEXT, tenant.as_str());
                self.sessions.query(OF_TENANT, &params.params()).await?
            }
        };
        let more = i64::try_from(found.len()).unwrap_or(most) >= most;
        let rows = found.iter().map(feed_row).collect::<Result<Vec<FeedRow>, Fault>>()?;
        Ok(page(rows, after, limit as usize, more))
    }

    pub(super) async fn trim_feed(&self, age: Duration) -> Result<u64> {
        let mut removed = 0;
        loop {
            let some: Result<(u64, u64)> = attempt!(self.sessions, self.trim_some(age));
            let (count, old) = some?;
            removed += count;
            if old < REMOVED_AT_ONCE.unsigned_abs() {
                return Ok(removed);
            }
        }
    }

    /// How many rows were removed, and how many there were to be: another server may remove them as well.
    async fn trim_some(&self, age: Duration) -> Result<(u64, u64), Fault> {
        let transaction = self.sessions.begin().await?;
        let before = transaction.now.checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH);
        let first = transaction.query(FIRST, &[(&REMOVED_AT_ONCE, Type::INT8)]).await?;
        let (mut last, mut count) = (None, 0);
        // No further than the first row that is kept: a clock may have been set.
        for row in &first {
            if get::<Timestamp>(row, 2)? >= before {
                break;
            }
            (last, count) = (Some((get::<String>(row, 0)?, get::<i64>(row, 1)?)), count + 1);
        }
        let Some((xid, seq)) = last else {
            transaction.rollback().await?;
            return Ok((0, 0));
        };
        let params = Columns::default().with(Type::TEXT, xid).with(Type::INT8, seq);
        let delete = "DELETE FROM remuda.feed WHERE (xid, seq) <= ($1::text::xid8, $2)";
        let removed = transaction.execute(delete, &params.params()).await?;
        // Another server that trims may have come further meanwhile.
        let update = "UPDATE remuda.feed_state SET removed_xid = $1::text::xid8, removed_seq = $2 \
             WHERE (removed_xid, removed_seq) < ($1::text::xid8, $2)";
        transaction.execute(update, &params.params()).await?;
        transaction.commit().await?;
        Ok((removed, count))
    }
}

fn ends(row: &Row) -> Result<FeedEnds, Fault> {
    let (epoch, removed): (i64, _) = (get(row, 0)?, (get(row, 1)?, get(row, 2)?));
    // A standby that took over may lack what was committed last, and gives the same numbers to other transactions: it writes on
    // another timeline, and nothing of before can be followed there without a look at the tasks.
    let timeline = get::<Option<i64>>(row, 5)?.ok_or_else(|| silent("the server is a standby"))?;
    let epoch = epoch + (timeline - 1) * EPOCHS;
    let last: (Option<i64>, Option<i64>) = (get(row, 3)?, get(row, 4)?);
    let last = last.0.zip(last.1).unwrap_or(removed).max(removed);
    let place = |(transaction, row)| FeedPlace::after_row(epoch, transaction, row);
    Ok(FeedEnds { first: place(removed), last: place(last) })
}

fn feed_row(row: &Row) -> Result<FeedRow, Fault> {
    let corrupt = |error: &dyn std::error::Error| Error::Corrupt(format!("the feed: {error}"));
    let tenant = Tenant::new(get::<String>(row, 2)?).map_err(|error| corrupt(&error))?;
    let entries = FeedPack::read(&get::<Vec<u8>>(row, 3)?).map_err(|error| corrupt(&error))?;
    Ok(FeedRow { transaction: get(row, 0)?, row: get(row, 1)?, tenant, entries })
}

#[cfg(test)]
mod tests;
