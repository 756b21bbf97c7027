//! What ComfyUIs say of their nodes: who brought it, and for how long it is kept.

use std::time::Duration;

use remuda_core::{KeyId, Sha256, Timestamp};
use uuid::Uuid;

use super::batch::Batch;
use super::fault::Outcome;
use super::rows::micros;
use crate::{Descriptions, Error};

/// So old the moment of the last use may be before it is written again.
const COARSE: Duration = Duration::from_secs(3600);

/// What workers say they have.
macro_rules! used {
    () => {
        "(SELECT unhex(report ->> '$.object_info') FROM worker WHERE report ->> '$.object_info' IS NOT NULL)"
    };
}

impl Batch<'_> {
    /// Keeps an `object_info` under its hash.
    pub(super) fn save_object_info(&mut self, hash: Sha256, json: &str) -> Outcome<()> {
        self.keep_object_info(hash, json, KeyId(Uuid::nil()))
    }

    /// The same for a process elsewhere, within what its key may bring.
    pub(super) fn bring_object_info(
        &mut self,
        hash: Sha256,
        json: &str,
        key: KeyId,
        bounds: Descriptions,
    ) -> Outcome<()> {
        let sql = "SELECT count(*), coalesce(sum(bytes), 0) FROM object_info_use WHERE key = ? AND hash <> ?";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let mut statement = self.db.prepare_cached(sql)?;
        let (mut count, mut bytes) = statement.query_row((key.0.as_bytes(), hash.0), read)?;
        drop(statement);
        count += 1;
        bytes += i64::try_from(json.len()).unwrap_or(i64::MAX);
        let most = i64::try_from(bounds.bytes).unwrap_or(i64::MAX);
        let fits = |count: i64, bytes: i64| count <= i64::from(bounds.most) && bytes <= most;
        if !fits(count, bytes) {
            let sql = concat!(
                "SELECT hash, bytes FROM object_info_use WHERE key = ? AND hash <> ? AND hash NOT IN ",
                used!(),
                " ORDER BY at, hash"
            );
            let mut statement = self.db.prepare_cached(sql)?;
            let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, [u8; 32]>(0)?, row.get::<_, i64>(1)?));
            let unused = statement.query_map((key.0.as_bytes(), hash.0), read)?;
            let unused: Vec<([u8; 32], i64)> = unused.collect::<Result<_, _>>()?;
            drop(statement);
            let mut out = Vec::new();
            for (old, length) in unused {
                if fits(count, bytes) {
                    break;
                }
                (count, bytes) = (count - 1, bytes - length);
                out.push(old);
            }
            if !fits(count, bytes) {
                return Err(Error::TooMany { what: "descriptions of nodes" }.into());
            }
            for old in out {
                let sql = "DELETE FROM object_info_use WHERE key = ? AND hash = ?";
                self.db.prepare_cached(sql)?.execute((key.0.as_bytes(), old))?;
                let sql = "DELETE FROM object_info WHERE hash = ?1 \
                           AND NOT EXISTS (SELECT 1 FROM object_info_use WHERE hash = ?1)";
                self.db.prepare_cached(sql)?.execute((old,))?;
            }
        }
        self.keep_object_info(hash, json, key)
    }

    fn keep_object_info(&mut self, hash: Sha256, json: &str, key: KeyId) -> Outcome<()> {
        let sql = "INSERT INTO object_info (hash, json) VALUES (?, ?) ON CONFLICT DO NOTHING";
        self.db.prepare_cached(sql)?.execute((hash.0, json))?;
        let sql = "INSERT INTO object_info_use (key, hash, bytes, at) VALUES (?, ?, ?, ?) \
                   ON CONFLICT DO UPDATE SET at = excluded.at";
        let length = i64::try_from(json.len()).unwrap_or(i64::MAX);
        let params = (key.0.as_bytes(), hash.0, length, micros(self.now));
        self.db.prepare_cached(sql)?.execute(params)?;
        Ok(())
    }

    /// Removes what no worker uses and nobody has brought for this long.
    pub(super) fn forget_object_info(&mut self, age: Duration) -> Outcome<u64> {
        let before = |age| micros(self.now.checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH));
        let now = micros(self.now);
        let sql = concat!("UPDATE object_info_use SET at = ?1 WHERE at < ?2 AND hash IN ", used!());
        self.db.prepare_cached(sql)?.execute((now, before(COARSE.min(age / 2))))?;
        // Kept by a program that did not note who brought it.
        let sql = "INSERT INTO object_info_use (key, hash, bytes, at) \
                   SELECT zeroblob(16), o.hash, length(o.json), ? FROM object_info o \
                   WHERE NOT EXISTS (SELECT 1 FROM object_info_use u WHERE u.hash = o.hash)";
        self.db.prepare_cached(sql)?.execute((now,))?;
        let sql = "DELETE FROM object_info_use WHERE at < ?";
        self.db.prepare_cached(sql)?.execute((before(age),))?;
        let sql = "DELETE FROM object_info WHERE NOT EXISTS \
                   (SELECT 1 FROM object_info_use u WHERE u.hash = object_info.hash)";
        let gone = self.db.prepare_cached(sql)?.execute(())?;
        Ok(u64::try_from(gone).unwrap_or_default())
    }
}
