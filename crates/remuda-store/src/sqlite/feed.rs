//! The feed: written with every commit, read by whoever follows what happens.

use std::time::Duration;

use remuda_core::{FeedEntry, FeedPack, Tenant};
use rusqlite::{Connection, Row};

use super::batch::Batch;
use super::fault::{Outcome, corrupt};
use super::rows::micros;
use crate::Error;
use crate::feed::{FeedEnds, FeedPage, FeedPlace, FeedRow, page};

/// How many rows are removed in one transaction.
const REMOVED_AT_ONCE: usize = 500;

impl Batch<'_> {
    /// What happened to a task, for the feed of its tenant.
    pub(super) fn tell(&mut self, tenant: &Tenant, entry: FeedEntry) {
        let pack = match self.effects.feed.get_mut(tenant) {
            Some(pack) => pack,
            None => self.effects.feed.entry(tenant.clone()).or_default(),
        };
        pack.push(entry);
    }

    /// Writes what was told in this transaction.
    pub(super) fn write_feed(&mut self) -> Outcome<()> {
        let sql = "INSERT INTO feed (row, tenant, at, entries) VALUES (?, ?, ?, ?)";
        for (tenant, pack) in std::mem::take(&mut self.effects.feed) {
            let params = (self.state.next_feed, tenant.as_str(), micros(self.now), pack.as_bytes());
            self.db.prepare_cached(sql)?.execute(params)?;
            self.state.next_feed += 1;
        }
        Ok(())
    }

    /// Removes some of what happened longer ago than this. How many rows, and whether there are more.
    pub(super) fn trim_feed(&mut self, age: Duration) -> Outcome<(u64, bool)> {
        let Ok(before) = self.now.checked_sub(age) else { return Ok((0, false)) };
        // From the first row on, and no further than the first one that is kept: a clock may have been set.
        let sql = "SELECT row, at FROM feed ORDER BY row LIMIT ?";
        let mut statement = self.db.prepare_cached(sql)?;
        let mut found = statement.query((REMOVED_AT_ONCE as i64,))?;
        let (mut last, mut count) = (None, 0);
        while let Some(row) = found.next()? {
            if row.get::<_, i64>(1)? >= micros(before) {
                break;
            }
            (last, count) = (Some(row.get::<_, i64>(0)?), count + 1);
        }
        let Some(last) = last else { return Ok((0, false)) };
        self.db.prepare_cached("DELETE FROM feed WHERE row <= ?")?.execute((last,))?;
        self.db.prepare_cached("UPDATE feed_state SET removed = ?")?.execute((last,))?;
        Ok((count, count == REMOVED_AT_ONCE as u64))
    }
}

/// Begins a new epoch if a release that does not write the feed has changed tasks: nobody can follow what it did.
pub(super) fn mend(db: &Connection) -> rusqlite::Result<()> {
    db.execute(
        "UPDATE feed_state SET epoch = epoch + 1, broken = 0, \
         removed = max(removed, coalesce((SELECT max(row) FROM feed), 0)) WHERE broken = 1",
        (),
    )?;
    Ok(())
}

/// The number of the next row.
pub(super) fn next(db: &Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT 1 + max(removed, coalesce((SELECT max(row) FROM feed), 0)) FROM feed_state";
    db.query_row(sql, (), |row| row.get(0))
}

/// Where it begins and ends.
pub(super) fn ends(db: &Connection) -> Outcome<FeedEnds> {
    let sql = "SELECT epoch, removed, (SELECT max(row) FROM feed) FROM feed_state";
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get::<_, Option<i64>>(2)?));
    let (epoch, removed, last): (i64, i64, _) = db.prepare_cached(sql)?.query_row((), read)?;
    let place = |row| FeedPlace::after_row(epoch, 0, row);
    Ok(FeedEnds { first: place(removed), last: place(last.unwrap_or(removed).max(removed)) })
}

/// What happened after a place, of one tenant or of all.
pub(super) fn read(
    db: &Connection,
    tenant: Option<&Tenant>,
    after: FeedPlace,
    limit: u32,
) -> Outcome<FeedPage> {
    let sql = match tenant {
        Some(_) => "SELECT row, tenant, entries FROM feed WHERE row >= ?1 AND tenant = ?2 ORDER BY row",
        None => "SELECT row, tenant, entries FROM feed WHERE row >= ?1 AND ?2 IS NULL ORDER BY row",
    };
    let limit = limit as usize;
    let mut statement = db.prepare_cached(sql)?;
    let mut found = statement.query((after.row, tenant.map(Tenant::as_str)))?;
    let (mut rows, mut count) = (Vec::new(), 0);
    // What is known of the first row does not count.
    while count <= limit
        && let Some(row) = found.next()?
    {
        let bytes: Vec<u8> = row.get(2)?;
        let entries = FeedPack::read(&bytes).map_err(|error| corrupt("the feed", error))?;
        let number: i64 = row.get(0)?;
        count += if number == after.row { 0 } else { entries.len() };
        let tenant = Tenant::new(row.get::<_, String>(1)?).map_err(|error| corrupt("the feed", error))?;
        rows.push(FeedRow { transaction: 0, row: number, tenant, entries });
    }
    let more = found.next()?.is_some();
    // Afterwards: what was removed while it was read must not be skipped in silence.
    let FeedEnds { first, .. } = ends(db)?;
    if after.epoch != first.epoch || after < first {
        return Err(Error::Gone { first }.into());
    }
    Ok(page(rows, after, limit, more))
}
