//! Small files that clients keep with us.

use remuda_core::Tenant;
use rusqlite::{Connection, params};

use super::batch::Batch;
use super::fault::Outcome;
use super::reads::{all, one};
use super::rows::{self, micros};
use crate::options::Kept;
use crate::{Document, DocumentInfo};

pub(super) fn document(
    db: &Connection,
    tenant: &Tenant,
    space: &str,
    path: &str,
) -> Outcome<Option<Document>> {
    let sql = "SELECT path, length(bytes), created_at, modified_at, bytes FROM document \
               WHERE tenant = ? AND space = ? AND path = ?";
    one(db, sql, (tenant.as_str(), space, path), |row| {
        let DocumentInfo { path, created_at, modified_at, .. } = rows::document_info(row)?;
        let (tenant, space, bytes) = (tenant.clone(), space.to_owned(), row.get(4)?);
        Ok(Document { tenant, space, path, bytes, created_at, modified_at })
    })
}

/// By path. The first names are found by the index; what a prefix is needs no pattern, in which `%` and `_` would mean something.
pub(super) fn documents(
    db: &Connection,
    tenant: &Tenant,
    space: &str,
    prefix: &str,
) -> Outcome<Vec<DocumentInfo>> {
    let sql = "SELECT path, length(bytes), created_at, modified_at FROM document WHERE tenant = ?1 \
               AND space = ?2 AND path >= ?3 AND substr(path, 1, length(?3)) = ?3 ORDER BY path";
    all(db, sql, (tenant.as_str(), space, prefix), rows::document_info)
}

impl Batch<'_> {
    /// Writes a document; `None` when there is one and it must stay.
    pub(super) fn put_document(
        &mut self,
        tenant: &Tenant,
        space: &str,
        path: &str,
        bytes: &[u8],
        replace: bool,
    ) -> Outcome<Option<DocumentInfo>> {
        let old = "SELECT length(bytes) FROM document WHERE tenant = ? AND space = ? AND path = ?";
        let old: Option<i64> = one(self.db, old, (tenant.as_str(), space, path), |row| Ok(row.get(0)?))?;
        if replace || old.is_none() {
            let total = "SELECT count, bytes FROM document_total WHERE tenant = ?";
            let total: Option<(i64, i64)> =
                one(self.db, total, (tenant.as_str(),), |row| Ok((row.get(0)?, row.get(1)?)))?;
            let positive = |number: i64| u64::try_from(number).unwrap_or(0);
            let before = total.map_or_else(Kept::default, |(count, bytes)| Kept {
                count: positive(count),
                bytes: positive(bytes),
            });
            let after = before.with(bytes.len() as u64, old.map(positive));
            self.settings.documents().check(before, after)?;
        }
        let sql = if replace {
            "INSERT INTO document (tenant, space, path, created_at, modified_at, bytes) \
             VALUES (?1, ?2, ?3, ?4, ?4, ?5) ON CONFLICT DO UPDATE \
             SET bytes = excluded.bytes, modified_at = excluded.modified_at \
             RETURNING path, length(bytes), created_at, modified_at"
        } else {
            "INSERT INTO document (tenant, space, path, created_at, modified_at, bytes) \
             VALUES (?1, ?2, ?3, ?4, ?4, ?5) ON CONFLICT DO NOTHING \
             RETURNING path, length(bytes), created_at, modified_at"
        };
        let params = params![tenant.as_str(), space, path, micros(self.now), bytes];
        one(self.db, sql, params, rows::document_info)
    }

    /// Removes a document; whether there was one.
    pub(super) fn delete_document(&mut self, tenant: &Tenant, space: &str, path: &str) -> Outcome<bool> {
        let sql = "DELETE FROM document WHERE tenant = ? AND space = ? AND path = ?";
        Ok(self.db.prepare_cached(sql)?.execute((tenant.as_str(), space, path))? > 0)
    }
}
