//! On whose word workers are known, and owners from before keys were part of them.

use std::time::Duration;

use remuda_core::{KeyId, OwnerId, Registration, Tenant, WorkerId};
use rusqlite::OptionalExtension as _;
use uuid::Uuid;

use super::batch::Batch;
use super::fault::{Outcome, corrupt};
use super::rows::{micros, moment};

impl Batch<'_> {
    /// On whose word a worker is known.
    pub(super) fn registration(&self, worker: &WorkerId) -> Outcome<Registration> {
        let sql = "SELECT r.key, k.tenant, k.revoked_at IS NOT NULL FROM registration r \
                   LEFT JOIN key k ON k.id = r.key WHERE r.worker = ?";
        let read = |row: &rusqlite::Row<'_>| {
            Ok((row.get::<_, Option<[u8; 16]>>(0)?, row.get::<_, Option<String>>(1)?, row.get(2)?))
        };
        let found = self.db.prepare_cached(sql)?.query_row((worker.as_str(),), read).optional()?;
        Ok(match found {
            None => Registration::Before,
            Some((None, ..)) => Registration::Here,
            Some((Some(id), tenant, revoked)) => {
                let tenant = tenant.map(Tenant::new).transpose().map_err(|error| corrupt("a key", error))?;
                Registration::Key { id: KeyId(Uuid::from_bytes(id)), tenant, revoked }
            }
        })
    }

    /// Notes on whose word a worker is known from now on.
    pub(super) fn register(&mut self, worker: &WorkerId, key: Option<KeyId>) -> Outcome<()> {
        let sql = "INSERT INTO registration (worker, key) VALUES (?, ?) \
                   ON CONFLICT DO UPDATE SET key = excluded.key WHERE key IS NOT excluded.key";
        let key = key.map(|key| *key.0.as_bytes());
        self.db.prepare_cached(sql)?.execute((worker.as_str(), key))?;
        Ok(())
    }

    /// How many workers a key has.
    pub(super) fn registered(&self, key: KeyId) -> Outcome<u64> {
        let sql = "SELECT count(*) FROM registration r JOIN worker w ON w.id = r.worker WHERE r.key = ?";
        let read = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let count = self.db.prepare_cached(sql)?.query_row((key.0.as_bytes(),), read)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// How many bytes the other workers of a key were registered with.
    pub(super) fn registered_bytes(&self, key: KeyId, but: &WorkerId) -> Outcome<u64> {
        let sql = "SELECT coalesce(sum(octet_length(w.spec)), 0) FROM registration r \
                   JOIN worker w ON w.id = r.worker WHERE r.key = ? AND w.id <> ?";
        let read = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let bytes = self.db.prepare_cached(sql)?.query_row((key.0.as_bytes(), but.as_str()), read)?;
        Ok(u64::try_from(bytes).unwrap_or(0))
    }

    /// Whether an owner from before is known by this key, from now on or since earlier.
    pub(super) fn inherit(&mut self, owner: OwnerId, key: KeyId, grace: Duration) -> Outcome<bool> {
        if owner == self.settings.owner() {
            return Ok(false);
        }
        let sql = "SELECT key, since FROM former_owner WHERE owner = ?";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, Option<[u8; 16]>>(0)?, row.get::<_, i64>(1)?));
        let found = self.db.prepare_cached(sql)?.query_row((owner.0.as_bytes(),), read).optional()?;
        let (by, since) = match found {
            None => return Ok(false),
            Some((Some(by), _)) => return Ok(by == *key.0.as_bytes()),
            Some((None, since)) => (key, since),
        };
        let until = moment(since)?.checked_add(grace).unwrap_or(remuda_core::Timestamp::MAX);
        if self.now > until {
            return Ok(false);
        }
        let sql = "UPDATE former_owner SET key = ?2 WHERE owner = ?1 \
                   AND NOT EXISTS (SELECT 1 FROM leader WHERE holder = ?1) \
                   AND (?3 OR EXISTS (SELECT 1 FROM key WHERE id = ?2 AND created_at <= ?4))";
        let params = (owner.0.as_bytes(), by.0.as_bytes(), by.0.is_nil(), micros(moment(since)?));
        Ok(self.db.prepare_cached(sql)?.execute(params)? > 0)
    }
}
