//! On whose word workers are known, and owners from before keys were part of them.

use std::time::Duration;

use postgres_types::Type;
use remuda_core::{KeyId, OwnerId, Registration, Tenant, WorkerId};
use tokio_postgres::Row;

use super::columns::Columns;
use super::fault::Fault;
use super::inner::Inner;
use super::rows::get;
use super::session::{Transaction, attempt};
use crate::{Error, Result};

/// Registrations under one key take turns, so that they are counted rightly.
pub(super) async fn lock_key(transaction: &Transaction, key: KeyId) -> Result<(), Fault> {
    let statement = "SELECT 1 FROM remuda.api_key WHERE id = $1 FOR UPDATE";
    transaction.query(statement, &[(&key.0, Type::UUID)]).await.map(|_| ())
}

/// On whose word a worker is known.
pub(super) async fn find(transaction: &Transaction, worker: &WorkerId) -> Result<Registration, Fault> {
    let statement = "SELECT r.key, k.tenant, k.revoked_at IS NOT NULL FROM remuda.registration r \
        LEFT JOIN remuda.api_key k ON k.id = r.key WHERE r.worker = $1";
    let rows = transaction.query(statement, &[(&worker.as_str(), Type::TEXT)]).await?;
    let Some(row) = rows.first() else { return Ok(Registration::Before) };
    let Some(id) = get(row, 0)? else { return Ok(Registration::Here) };
    let tenant: Option<String> = get(row, 1)?;
    let tenant = tenant.map(Tenant::new).transpose();
    let tenant = tenant.map_err(|error| Error::Corrupt(error.to_string()))?;
    Ok(Registration::Key { id: KeyId(id), tenant, revoked: get(row, 2)? })
}

/// A worker and the key that it was registered with.
pub(super) fn pair(row: &Row) -> Result<(WorkerId, KeyId), Fault> {
    let worker = WorkerId::new(get::<String>(row, 0)?).map_err(|error| Error::Corrupt(error.to_string()))?;
    Ok((worker, KeyId(get(row, 1)?)))
}

/// How many workers a key has.
pub(super) async fn count(transaction: &Transaction, key: KeyId) -> Result<u64, Fault> {
    let statement = "SELECT count(*) FROM remuda.registration r JOIN remuda.worker w ON w.id = r.worker \
        WHERE r.key = $1";
    let rows = transaction.query(statement, &[(&key.0, Type::UUID)]).await?;
    let count: i64 = rows.first().map_or(Ok(0), |row| get(row, 0))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// How many bytes the other workers of a key were registered with.
pub(super) async fn bytes(transaction: &Transaction, key: KeyId, but: &WorkerId) -> Result<u64, Fault> {
    let statement = "SELECT coalesce(sum(octet_length(w.endpoint) + coalesce(octet_length(w.name), 0) \
        + octet_length(array_to_string(w.labels, '----'))), 0)::bigint FROM remuda.registration r \
        JOIN remuda.worker w ON w.id = r.worker WHERE r.key = $1 AND w.id <> $2";
    let params = Columns::default().with(Type::UUID, key.0).with(Type::TEXT, but.as_str());
    let rows = transaction.query(statement, &params.params()).await?;
    let bytes: i64 = rows.first().map_or(Ok(0), |row| get(row, 0))?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Notes on whose word a worker is known from now on.
pub(super) async fn note(
    transaction: &Transaction,
    worker: &WorkerId,
    key: Option<KeyId>,
) -> Result<(), Fault> {
    let statement = "INSERT INTO remuda.registration AS r (worker, key) VALUES ($1, $2) ON CONFLICT (worker) \
        DO UPDATE SET key = excluded.key WHERE r.key IS DISTINCT FROM excluded.key";
    let params = Columns::default().with(Type::TEXT, worker.as_str()).with(Type::UUID, key.map(|key| key.0));
    transaction.execute(statement, &params.params()).await.map(|_| ())
}

impl Inner {
    pub(super) async fn inherit(&self, owner: OwnerId, key: KeyId, grace: Duration) -> Result<bool> {
        attempt!(self.sessions, self.try_inherit(owner, key, grace))
    }

    async fn try_inherit(&self, owner: OwnerId, key: KeyId, grace: Duration) -> Result<bool, Fault> {
        if owner == self.sessions.options().owner {
            return Ok(false);
        }
        let statement = "SELECT key FROM remuda.former_owner WHERE owner = $1";
        let rows = self.sessions.query(statement, &[(&owner.0, Type::UUID)]).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        if let Some(by) = get(row, 0)? {
            return Ok(KeyId(by) == key);
        }
        let statement = "UPDATE remuda.former_owner AS f SET key = $2 WHERE f.owner = $1 AND f.key IS NULL \
            AND f.since + $3 * interval '1 microsecond' >= now() \
            AND NOT EXISTS (SELECT 1 FROM remuda.leader WHERE holder = $1) \
            AND ($4 OR EXISTS (SELECT 1 FROM remuda.api_key k WHERE k.id = $2 AND k.created_at <= f.since)) \
            RETURNING f.owner";
        let params = Columns::default()
            .with(Type::UUID, owner.0)
            .with(Type::UUID, key.0)
            .with(Type::INT8, i64::try_from(grace.as_micros()).unwrap_or(i64::MAX))
            .with(Type::BOOL, key.0.is_nil());
        Ok(!self.sessions.query(statement, &params.params()).await?.is_empty())
    }
}
