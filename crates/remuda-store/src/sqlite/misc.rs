//! Leaders, keys and uploaded files.

use std::time::Duration;

use remuda_core::quota::Usage;
use remuda_core::{Fence, KeyId, KeyRecord, OwnerId, Sha256, Tenant};
use rusqlite::{OptionalExtension as _, params};
use uuid::Uuid;

use super::batch::Batch;
use super::fault::{Outcome, corrupt};
use super::rows::{self, json_text, micros, opt_micros};
use crate::options::{MOST_NAMES, too_many_names};
use crate::{Asset, Error};

impl Batch<'_> {
    /// Becomes or stays the one process that does something.
    pub(super) fn lead(&mut self, what: &str, holder: OwnerId, ttl: Duration) -> Outcome<Option<Fence>> {
        let sql = "SELECT holder, fence, until FROM leader WHERE what = ?";
        let read = |row: &rusqlite::Row<'_>| {
            Ok((OwnerId(Uuid::from_bytes(row.get(0)?)), row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        };
        let found = self.db.prepare_cached(sql)?.query_row((what,), read).optional()?;
        let now = micros(self.now);
        let fence = match found {
            Some((other, _, until)) if other != holder && until > now => return Ok(None),
            // Whoever let it lapse may have been followed by nobody, and still begins anew.
            Some((same, fence, until)) if same == holder && until > now => fence,
            Some((_, fence, _)) => fence + 1,
            None => 1,
        };
        let sql = "INSERT INTO leader (what, holder, fence, until) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE \
                   SET holder = excluded.holder, fence = excluded.fence, until = excluded.until";
        let until = micros(self.after(ttl));
        self.db.prepare_cached(sql)?.execute(params![what, holder.0.as_bytes(), fence, until])?;
        Ok(Some(Fence(fence)))
    }

    /// Steps down. The row stays: its fence must not begin again.
    pub(super) fn resign(&mut self, what: &str, holder: OwnerId) -> Outcome<()> {
        let sql = "UPDATE leader SET until = 0 WHERE what = ? AND holder = ?";
        self.db.prepare_cached(sql)?.execute((what, holder.0.as_bytes()))?;
        Ok(())
    }

    /// Keeps a new key.
    pub(super) fn add_key(&mut self, key: &KeyRecord) -> Outcome<()> {
        let sql = "INSERT INTO key (id, name, tenant, scopes, hash, created_at, revoked_at) \
                   VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
        self.db.prepare_cached(sql)?.execute(params![
            key.id.0.as_bytes(),
            key.name,
            key.tenant.as_str(),
            json_text(&key.scopes)?,
            key.hash.0,
            micros(key.created_at),
            opt_micros(key.revoked_at),
        ])?;
        Ok(())
    }

    /// Makes a key useless. A key that was revoked before stays so since then.
    pub(super) fn revoke_key(&mut self, id: KeyId) -> Outcome<KeyRecord> {
        let sql = "UPDATE key SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1 \
                   RETURNING id, name, tenant, scopes, hash, created_at, revoked_at";
        let mut statement = self.db.prepare_cached(sql)?;
        let mut found = statement.query((id.0.as_bytes(), micros(self.now)))?;
        let row = found.next()?.ok_or_else(|| Error::NotFound { what: "key", id: id.to_string() })?;
        let key = rows::key(row)?;
        match found.next()? {
            None => Ok(key),
            Some(_) => Err(corrupt("a key", "there are two of it")),
        }
    }

    /// Keeps what is known of an uploaded file. The same file under the same name again is news only of its time, and under
    /// another name it takes no further room.
    pub(super) fn add_asset(&mut self, asset: &Asset) -> Outcome<()> {
        let known = "SELECT 1 FROM asset WHERE tenant = ? AND sha256 = ?";
        let known = self.db.prepare_cached(known)?.exists((asset.tenant.as_str(), asset.sha256.0))?;
        if known {
            let names = "SELECT (SELECT count(*) FROM (SELECT 1 FROM asset WHERE tenant = ?1 AND sha256 = ?2 LIMIT ?4)) = ?4 \
                         AND NOT EXISTS (SELECT 1 FROM asset WHERE tenant = ?1 AND sha256 = ?2 AND filename = ?3)";
            let wanted = (asset.tenant.as_str(), asset.sha256.0, &asset.filename, MOST_NAMES);
            if self.db.prepare_cached(names)?.query_row(wanted, |row| row.get(0))? {
                return Err(too_many_names().into());
            }
        } else {
            self.may_have(&asset.tenant, Usage { waiting: 0, bytes: asset.size })??;
            self.state.read_usage_again(&asset.tenant);
        }
        let sql = "INSERT INTO asset (tenant, sha256, key, filename, mime, size, created_at) \
                   VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET key = excluded.key, \
                   mime = excluded.mime, size = excluded.size, created_at = excluded.created_at";
        self.db.prepare_cached(sql)?.execute(params![
            asset.tenant.as_str(),
            asset.sha256.0,
            asset.key,
            asset.filename,
            asset.mime,
            asset.size,
            micros(asset.created_at),
        ])?;
        Ok(())
    }

    /// Forgets that an uploaded file came under this name.
    pub(super) fn withdraw_asset(&mut self, asset: &Asset) -> Outcome<bool> {
        let sql = "DELETE FROM asset WHERE tenant = ? AND sha256 = ? AND filename = ? AND created_at = ?";
        let this = (asset.tenant.as_str(), asset.sha256.0, &asset.filename, micros(asset.created_at));
        if self.db.prepare_cached(sql)?.execute(this)? == 0 {
            return Ok(false);
        }
        let sql = "UPDATE stored SET bytes = bytes - ?3 WHERE tenant = ?1 \
                   AND NOT EXISTS (SELECT 1 FROM asset WHERE tenant = ?1 AND sha256 = ?2)";
        self.db.prepare_cached(sql)?.execute((asset.tenant.as_str(), asset.sha256.0, asset.size))?;
        self.state.read_usage_again(&asset.tenant);
        Ok(true)
    }

    /// Forgets an uploaded file under all its names.
    pub(super) fn delete_asset(&mut self, tenant: &Tenant, sha256: Sha256) -> Outcome<bool> {
        let key = (tenant.as_str(), sha256.0);
        let sql = "SELECT max(size) FROM asset WHERE tenant = ? AND sha256 = ?";
        let size: Option<i64> = self.db.prepare_cached(sql)?.query_row(key, |row| row.get(0))?;
        let Some(size) = size else { return Ok(false) };
        self.db.prepare_cached("DELETE FROM asset WHERE tenant = ? AND sha256 = ?")?.execute(key)?;
        let sql = "UPDATE stored SET bytes = bytes - ?2 WHERE tenant = ?1";
        self.db.prepare_cached(sql)?.execute((tenant.as_str(), size))?;
        self.state.read_usage_again(tenant);
        Ok(true)
    }
}
