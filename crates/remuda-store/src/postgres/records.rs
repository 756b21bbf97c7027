//! The small tables: leaders, keys, uploaded files.

use std::time::Duration;

use postgres_types::Type;
use remuda_core::quota::Usage;
use remuda_core::{Fence, KeyId, KeyRecord, OwnerId, Scope, Sha256, TaskId, Tenant, Timestamp};

use super::columns::{Columns, each};
use super::fault::Fault;
use super::inner::Inner;
use super::rows::{self, get};
use super::session::attempt;
use super::usages;
use crate::options::{MOST_NAMES, too_many_names};
use crate::{Asset, AssetUse, Error, Result};

const KEY: &str = "id, name, tenant, scopes, hash, created_at, revoked_at";
/// Under how many of its names the newest of a content is looked for: somebody may give it any number of names.
const NAMES_OF_ONE: usize = 64;
const ASSET: &str = "tenant, sha256, key, filename, mime, size, created_at";

impl Inner {
    pub(super) fn given_now(&self) -> Option<Timestamp> {
        self.sessions.options().clock.as_ref().map(|clock| clock.now())
    }

    pub(super) async fn ping(&self) -> Result<()> {
        let read = async || {
            let rows = self.sessions.query("SELECT version FROM remuda.schema", &[]).await?;
            let missing = || Fault::Is(Error::Corrupt("the schema has no version".to_owned()));
            rows.first().map(|_| ()).ok_or_else(missing)
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn lead(&self, what: &str, holder: OwnerId, ttl: Duration) -> Result<Option<Fence>> {
        let lead = async || {
            let ttl = i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX);
            let params = Columns::default()
                .with(Type::TEXT, what)
                .with(Type::UUID, holder.0)
                .with(Type::TIMESTAMPTZ, self.given_now())
                .with(Type::INT8, ttl);
            let statement = "INSERT INTO remuda.leader AS l (what, holder, fence, until) \
                VALUES ($1, $2, 1, coalesce($3, now()) + $4 * interval '1 microsecond') \
                ON CONFLICT (what) DO UPDATE SET holder = excluded.holder, until = excluded.until, \
                fence = CASE WHEN l.holder = excluded.holder AND l.until >= coalesce($3, now()) \
                THEN l.fence ELSE l.fence + 1 END \
                WHERE l.holder = excluded.holder OR l.until < coalesce($3, now()) RETURNING l.fence";
            let rows = self.sessions.query(statement, &params.params()).await?;
            rows.first().map(|row| get(row, 0).map(Fence)).transpose()
        };
        attempt!(self.sessions, lead())
    }

    pub(super) async fn resign(&self, what: &str, holder: OwnerId) -> Result<()> {
        let resign = async || {
            let params = Columns::default().with(Type::TEXT, what).with(Type::UUID, holder.0);
            // The row stays, so that the fence goes on rising.
            let statement = "UPDATE remuda.leader SET until = '-infinity' WHERE what = $1 AND holder = $2";
            self.sessions.query(statement, &params.params()).await.map(|_| ())
        };
        attempt!(self.sessions, resign())
    }

    pub(super) async fn add_key(&self, key: &KeyRecord) -> Result<()> {
        let add = async || {
            let params = Columns::default()
                .with(Type::UUID, key.id.0)
                .with(Type::TEXT, key.name.as_str())
                .with(Type::TEXT, key.tenant.as_str())
                .with(Type::TEXT_ARRAY, each(&key.scopes, |scope: &Scope| scope.as_str()))
                .with(Type::BYTEA, &key.hash.0[..])
                .with(Type::TIMESTAMPTZ, key.created_at)
                .with(Type::TIMESTAMPTZ, key.revoked_at);
            let statement = format!(
                "INSERT INTO remuda.api_key ({KEY}) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING"
            );
            self.sessions.query(&statement, &params.params()).await.map(|_| ())
        };
        attempt!(self.sessions, add())
    }

    pub(super) async fn keys(&self) -> Result<Vec<KeyRecord>> {
        let read = async || {
            let statement = format!("SELECT {KEY} FROM remuda.api_key ORDER BY created_at, id");
            let rows = self.sessions.query(&statement, &[]).await?;
            rows.iter().map(rows::key).collect()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn revoke_key(&self, id: KeyId) -> Result<KeyRecord> {
        let revoke = async || {
            let params = Columns::default().with(Type::UUID, id.0).with(Type::TIMESTAMPTZ, self.given_now());
            let statement = format!(
                "UPDATE remuda.api_key SET revoked_at = coalesce(revoked_at, $2, now()) WHERE id = $1 RETURNING {KEY}"
            );
            let rows = self.sessions.query(&statement, &params.params()).await?;
            let missing = || Fault::Is(Error::NotFound { what: "key", id: id.to_string() });
            rows.first().map_or_else(|| Err(missing()), rows::key)
        };
        attempt!(self.sessions, revoke())
    }

    pub(super) async fn add_asset(&self, asset: &Asset) -> Result<()> {
        attempt!(self.sessions, self.try_add_asset(asset))
    }

    async fn try_add_asset(&self, asset: &Asset) -> Result<(), Fault> {
        let transaction = self.sessions.begin().await?;
        let params = Columns::default()
            .with(Type::TEXT, asset.tenant.as_str())
            .with(Type::BYTEA, &asset.sha256.0[..])
            .with(Type::TEXT, asset.key.as_str())
            .with(Type::TEXT, asset.filename.as_str())
            .with(Type::TEXT, asset.mime.as_str())
            .with(Type::INT8, asset.size)
            .with(Type::TIMESTAMPTZ, asset.created_at);
        let known = "SELECT 1 FROM remuda.asset WHERE tenant = $1 AND sha256 = $2 LIMIT 1";
        let content =
            Columns::default().with(Type::TEXT, asset.tenant.as_str()).with(Type::BYTEA, &asset.sha256.0[..]);
        let is_known = !transaction.query(known, &content.params()).await?.is_empty();
        if is_known {
            let names = "SELECT (SELECT count(*) FROM (SELECT 1 FROM remuda.asset WHERE tenant = $1 AND sha256 = $2 LIMIT $4) n) = $4 \
                AND NOT EXISTS (SELECT 1 FROM remuda.asset WHERE tenant = $1 AND sha256 = $2 AND filename = $3)";
            let wanted = Columns::default()
                .with(Type::TEXT, asset.tenant.as_str())
                .with(Type::BYTEA, &asset.sha256.0[..])
                .with(Type::TEXT, asset.filename.as_str())
                .with(Type::INT8, MOST_NAMES);
            let rows = transaction.query(names, &wanted.params()).await?;
            if rows.first().map(|row| get::<bool>(row, 0)).transpose()?.unwrap_or(false) {
                transaction.rollback().await?;
                return Err(too_many_names().into());
            }
        }
        let statement = format!(
            "INSERT INTO remuda.asset ({ASSET}) VALUES ($1, $2, $3, $4, $5, $6, $7) \
             ON CONFLICT (tenant, sha256, filename) DO UPDATE SET key = excluded.key, mime = excluded.mime, \
             size = excluded.size, created_at = excluded.created_at"
        );
        transaction.execute(&statement, &params.params()).await?;
        // What takes no further room is never refused. The counter of the tenant's assets is locked by now.
        if !is_known {
            let after = usages::read(&transaction, &asset.tenant).await?;
            let has = Usage { waiting: 0, bytes: after.bytes - asset.size };
            let more = Usage { waiting: 0, bytes: asset.size };
            if let Err(over) = self.sessions.options().quota.admit(has, more) {
                transaction.rollback().await?;
                return Err(Error::from(over).into());
            }
        }
        transaction.commit().await
    }

    pub(super) async fn delete_asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<bool> {
        attempt!(self.sessions, self.try_delete_asset(tenant, sha256))
    }

    async fn try_delete_asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<bool, Fault> {
        let transaction = self.sessions.begin().await?;
        let whose = Columns::default().with(Type::TEXT, tenant.as_str());
        // As whoever adds one does: of several at once each sees what those before it left.
        let lock = "SELECT 1 FROM remuda.counter WHERE tenant = $1 AND shard = -2 FOR UPDATE";
        transaction.query(lock, &whose.params()).await?;
        let key = Columns::default().with(Type::TEXT, tenant.as_str()).with(Type::BYTEA, &sha256.0[..]);
        let delete = "DELETE FROM remuda.asset WHERE tenant = $1 AND sha256 = $2 RETURNING size";
        let gone = transaction.query(delete, &key.params()).await?;
        let sizes = gone.iter().map(|row| get::<i64>(row, 0)).collect::<Result<Vec<_>, _>>()?;
        let size = sizes.iter().copied().max();
        if let Some(size) = size {
            let less = Columns::default().with(Type::TEXT, tenant.as_str()).with(Type::INT8, size);
            let count = "UPDATE remuda.counter SET stored = stored - $2 WHERE tenant = $1 AND shard = -2";
            transaction.execute(count, &less.params()).await?;
        }
        transaction.commit().await?;
        Ok(size.is_some())
    }

    pub(super) async fn withdraw_asset(&self, asset: &Asset) -> Result<bool> {
        attempt!(self.sessions, self.try_withdraw_asset(asset))
    }

    async fn try_withdraw_asset(&self, asset: &Asset) -> Result<bool, Fault> {
        let transaction = self.sessions.begin().await?;
        let whose = Columns::default().with(Type::TEXT, asset.tenant.as_str());
        let lock = "SELECT 1 FROM remuda.counter WHERE tenant = $1 AND shard = -2 FOR UPDATE";
        transaction.query(lock, &whose.params()).await?;
        let content = || {
            Columns::default().with(Type::TEXT, asset.tenant.as_str()).with(Type::BYTEA, &asset.sha256.0[..])
        };
        let delete = "DELETE FROM remuda.asset WHERE tenant = $1 AND sha256 = $2 AND filename = $3 AND created_at = $4 \
            RETURNING 1";
        let this =
            content().with(Type::TEXT, asset.filename.as_str()).with(Type::TIMESTAMPTZ, asset.created_at);
        let is_gone = !transaction.query(delete, &this.params()).await?.is_empty();
        if is_gone {
            let less = content().with(Type::INT8, asset.size);
            let count = "UPDATE remuda.counter SET stored = stored - $3 WHERE tenant = $1 AND shard = -2 \
                AND NOT EXISTS (SELECT 1 FROM remuda.asset WHERE tenant = $1 AND sha256 = $2)";
            transaction.execute(count, &less.params()).await?;
        }
        transaction.commit().await?;
        Ok(is_gone)
    }

    /// Running tasks are few, and looked at each time: one that begins while others are looked at is not missed.
    pub(super) async fn asset_use(
        &self,
        tenant: &Tenant,
        sha256: Sha256,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<AssetUse> {
        let hash = sha256.to_string();
        let look = async || {
            let params = Columns::default().with(Type::TEXT, tenant.as_str()).with(Type::TEXT, hash.as_str());
            let statement = "SELECT l.task FROM remuda.lease l JOIN remuda.task t ON t.id = l.task \
                JOIN remuda.task_input i ON i.task = l.task \
                WHERE t.tenant = $1 AND position($2 IN i.placements::text) > 0 LIMIT 1";
            let running = self.sessions.query(statement, &params.params()).await?;
            if let Some(row) = running.first() {
                return Ok(AssetUse::By(TaskId(get(row, 0)?)));
            }
            let after = after.map_or(uuid::Uuid::nil(), |after| after.0);
            let params = params.with(Type::UUID, after).with(Type::INT8, i64::from(limit));
            let statement = "SELECT t.id, position($2 IN i.placements::text) > 0 \
                FROM (SELECT id FROM remuda.task WHERE tenant = $1 AND status = 'pending' AND id > $3 \
                ORDER BY id LIMIT $4) t JOIN remuda.task_input i ON i.task = t.id ORDER BY t.id";
            let waiting = self.sessions.query(statement, &params.params()).await?;
            for row in &waiting {
                if get::<bool>(row, 1)? {
                    return Ok(AssetUse::By(TaskId(get(row, 0)?)));
                }
            }
            Ok(match waiting.last() {
                Some(last) if waiting.len() >= limit as usize => AssetUse::After(TaskId(get(last, 0)?)),
                _ => AssetUse::Unused,
            })
        };
        attempt!(self.sessions, look())
    }

    /// From one tenant to the next in the index, which does not begin with the content.
    pub(super) async fn unknown_assets(&self, contents: &[Sha256]) -> Result<Vec<Sha256>> {
        let look = async || {
            let hashes = each(contents, |content| &content.0[..]);
            let params = Columns::default().with(Type::BYTEA_ARRAY, hashes);
            let statement = "WITH RECURSIVE whose (t) AS (SELECT min(tenant) FROM remuda.asset UNION ALL \
                SELECT (SELECT min(tenant) FROM remuda.asset WHERE tenant > t) FROM whose WHERE t IS NOT NULL) \
                SELECT u.content FROM unnest($1) AS u(content) WHERE NOT EXISTS (SELECT 1 FROM whose \
                JOIN remuda.asset a ON a.tenant = whose.t AND a.sha256 = u.content)";
            let rows = self.sessions.query(statement, &params.params()).await?;
            rows.iter().map(|row| rows::hash(row, 0)).collect()
        };
        attempt!(self.sessions, look())
    }

    pub(super) async fn submitted(&self, tenant: &Tenant, key: &str) -> Result<Option<(Sha256, TaskId)>> {
        let read = async || {
            let params = Columns::default().with(Type::TEXT, tenant.as_str()).with(Type::TEXT, key);
            let statement = "SELECT request, task FROM remuda.idem WHERE tenant = $1 AND key = $2";
            let rows = self.sessions.query(statement, &params.params()).await?;
            rows.first().map(|row| Ok((rows::hash(row, 0)?, TaskId(get(row, 1)?)))).transpose()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<Option<Asset>> {
        let read = async || {
            let params =
                Columns::default().with(Type::TEXT, tenant.as_str()).with(Type::BYTEA, &sha256.0[..]);
            let statement = format!(
                "SELECT {ASSET} FROM (SELECT {ASSET} FROM remuda.asset WHERE tenant = $1 AND sha256 = $2 \
                 ORDER BY filename LIMIT {NAMES_OF_ONE}) a ORDER BY created_at DESC LIMIT 1"
            );
            let rows = self.sessions.query(&statement, &params.params()).await?;
            rows.first().map(rows::asset).transpose()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn asset_named(&self, tenant: &Tenant, filename: &str) -> Result<Option<Asset>> {
        let read = async || {
            let params = Columns::default().with(Type::TEXT, tenant.as_str()).with(Type::TEXT, filename);
            let statement = format!(
                "SELECT {ASSET} FROM remuda.asset WHERE tenant = $1 AND filename = $2 ORDER BY created_at DESC LIMIT 1"
            );
            let rows = self.sessions.query(&statement, &params.params()).await?;
            rows.first().map(rows::asset).transpose()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn assets(&self, tenant: &Tenant, limit: u32) -> Result<Vec<Asset>> {
        let read = async || {
            let params =
                Columns::default().with(Type::TEXT, tenant.as_str()).with(Type::INT8, i64::from(limit));
            // From one name to the next in the index, however often something else was uploaded under each.
            let statement = format!(
                "WITH RECURSIVE n AS ((SELECT filename FROM remuda.asset WHERE tenant = $1 \
                 ORDER BY filename COLLATE \"C\" LIMIT 1) UNION ALL SELECT (SELECT a.filename FROM remuda.asset a \
                 WHERE a.tenant = $1 AND a.filename COLLATE \"C\" > n.filename COLLATE \"C\" \
                 ORDER BY a.filename COLLATE \"C\" LIMIT 1) FROM n WHERE n.filename IS NOT NULL), \
                 named AS (SELECT filename FROM n WHERE filename IS NOT NULL LIMIT $2) \
                 SELECT a.* FROM named CROSS JOIN LATERAL (SELECT {ASSET} FROM remuda.asset o WHERE o.tenant = $1 \
                 AND o.filename COLLATE \"C\" = named.filename COLLATE \"C\" ORDER BY o.filename COLLATE \"C\", \
                 o.created_at DESC LIMIT 1) a ORDER BY a.filename COLLATE \"C\""
            );
            let rows = self.sessions.query(&statement, &params.params()).await?;
            rows.iter().map(rows::asset).collect()
        };
        attempt!(self.sessions, read())
    }
}
