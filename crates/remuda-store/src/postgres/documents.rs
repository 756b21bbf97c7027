//! Small files that clients keep with us.

use postgres_types::Type;
use remuda_core::Tenant;

use super::columns::Columns;
use super::inner::Inner;
use super::rows::{self, get};
use super::session::attempt;
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
            let params =
                name(tenant, space, path).with(Type::BYTEA, bytes).with(Type::TIMESTAMPTZ, self.given_now());
            let otherwise = if replace {
                "UPDATE SET bytes = excluded.bytes, modified_at = excluded.modified_at"
            } else {
                "NOTHING"
            };
            let statement = format!(
                "INSERT INTO remuda.document (tenant, space, path, bytes, created_at, modified_at) \
                 VALUES ($1, $2, $3, $4, coalesce($5, now()), coalesce($5, now())) \
                 ON CONFLICT (tenant, space, path) DO {otherwise} RETURNING {INFO}"
            );
            let rows = self.sessions.query(&statement, &params.params()).await?;
            rows.first().map(rows::document_info).transpose()
        };
        attempt!(self.sessions, put())
    }

    pub(super) async fn delete_document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<bool> {
        let delete = async || {
            let statement =
                "DELETE FROM remuda.document WHERE tenant = $1 AND space = $2 AND path = $3 RETURNING path";
            let rows = self.sessions.query(statement, &name(tenant, space, path).params()).await?;
            Ok(!rows.is_empty())
        };
        attempt!(self.sessions, delete())
    }
}
