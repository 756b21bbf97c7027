//! Small files that clients keep with us.

use postgres_types::Type;
use remuda_core::Tenant;

use super::columns::Columns;
use super::inner::Inner;
use super::rows::{self, get};
use super::session::attempt;
use crate::options::Kept;
use crate::{Document, DocumentInfo, Result};

const INFO: &str = "path, octet_length(bytes), created_at, modified_at";

fn name<'a>(tenant: &'a Tenant, space: &'a str, path: &'a str) -> Columns<'a> {
    Columns::default().with(Type::TEXT, tenant.as_str()).with(Type::TEXT, space).with(Type::TEXT, path)
}

impl Inner {
    pub(super) async fn document(
        &self,
        tenant: &Tenant,
        space: &str,
        path: &str,
    ) -> Result<Option<Document>> {
        let read = async || {
            let statement = format!(
                "SELECT {INFO}, bytes FROM remuda.document WHERE tenant = $1 AND space = $2 AND path = $3"
            );
            let rows = self.sessions.query(&statement, &name(tenant, space, path).params()).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            let DocumentInfo { path, created_at, modified_at, .. } = rows::document_info(row)?;
            let (tenant, space, bytes) = (tenant.clone(), space.to_owned(), get(row, 4)?);
            Ok(Some(Document { tenant, space, path, bytes, created_at, modified_at }))
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn documents(
        &self,
        tenant: &Tenant,
        space: &str,
        prefix: &str,
    ) -> Result<Vec<DocumentInfo>> {
        let read = async || {
            // Not a pattern, in which `%` and `_` would mean something.
            let statement = format!(
                "SELECT {INFO} FROM remuda.document WHERE tenant = $1 AND space = $2 AND path >= $3 \
                 AND starts_with(path, $3) ORDER BY path"
            );
            let rows = self.sessions.query(&statement, &name(tenant, space, prefix).params()).await?;
            rows.iter().map(rows::document_info).collect()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn put_document(
        &self,
        tenant: &Tenant,
        space: &str,
        path: &str,
        bytes: &[u8],
        replace: bool,
    ) -> Result<Option<DocumentInfo>> {
        let put = async || {
            let limits = self.sessions.options().documents;
            let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            let params = name(tenant, space, path)
                .with(Type::BYTEA, bytes)
                .with(Type::TIMESTAMPTZ, self.given_now())
                .with(Type::INT8, number(limits.count))
                .with(Type::INT8, number(limits.bytes));
            let otherwise = if replace {
                "UPDATE SET bytes = excluded.bytes, modified_at = excluded.modified_at"
            } else {
                "NOTHING"
            };
            // The row of the total is locked first: writers of one tenant come one after the other, and each sees what the
            // one before it wrote. The same rule as `DocumentLimits::check`, in the words of the database.
            let statement = format!(
                "WITH total AS (SELECT count, bytes FROM remuda.document_total WHERE tenant = $1 FOR UPDATE), \
                 old AS (SELECT octet_length(bytes)::bigint AS size FROM remuda.document \
                 WHERE tenant = $1 AND space = $2 AND path = $3), \
                 held AS (SELECT coalesce((SELECT count FROM total), 0) AS count, \
                 coalesce((SELECT bytes FROM total), 0) AS bytes, (SELECT size FROM old) AS size), \
                 fits AS (SELECT count, bytes, size, (size IS NOT NULL OR count < $6) AND \
                 (bytes + octet_length($4) - coalesce(size, 0) <= $7 OR octet_length($4) <= coalesce(size, 0)) AS yes \
                 FROM held), \
                 put AS (INSERT INTO remuda.document (tenant, space, path, bytes, created_at, modified_at) \
                 SELECT $1, $2, $3, $4, coalesce($5, now()), coalesce($5, now()) FROM fits WHERE yes \
                 ON CONFLICT (tenant, space, path) DO {otherwise} \
                 RETURNING path, octet_length(bytes) AS length, created_at, modified_at) \
                 SELECT put.path, put.length, put.created_at, put.modified_at, \
                 fits.yes, fits.count, fits.bytes, fits.size FROM fits LEFT JOIN put ON true"
            );
            let rows = self.sessions.query(&statement, &params.params()).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            if get::<Option<String>>(row, 0)?.is_some() {
                return rows::document_info(row).map(Some);
            }
            let positive = |number: i64| u64::try_from(number).unwrap_or(0);
            let old: Option<i64> = get(row, 7)?;
            if !get::<bool>(row, 4)? && (replace || old.is_none()) {
                let before = Kept { count: positive(get(row, 5)?), bytes: positive(get(row, 6)?) };
                limits.check(before, before.with(bytes.len() as u64, old.map(positive)))?;
            }
            Ok(None)
        };
        attempt!(self.sessions, put())
    }

    pub(super) async fn delete_document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<bool> {
        let delete = async || {
            let statement =
                // In the order in which writers lock.
                "WITH total AS MATERIALIZED (SELECT 1 FROM remuda.document_total WHERE tenant = $1 FOR UPDATE) \
                 DELETE FROM remuda.document WHERE (SELECT count(*) FROM total) >= 0 \
                 AND tenant = $1 AND space = $2 AND path = $3 RETURNING path";
            let rows = self.sessions.query(statement, &name(tenant, space, path).params()).await?;
            Ok(!rows.is_empty())
        };
        attempt!(self.sessions, delete())
    }
}
