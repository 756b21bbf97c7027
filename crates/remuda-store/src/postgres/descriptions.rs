//! What ComfyUIs say of their nodes: who brought it, and for how long it is kept.

use std::time::Duration;

use postgres_types::Type;
use remuda_core::{KeyId, Sha256, Timestamp};
use uuid::Uuid;

use super::columns::Columns;
use super::fault::Fault;
use super::inner::Inner;
use super::registrations;
use super::rows::get;
use super::session::{Transaction, attempt};
use crate::{Descriptions, Error, Result};

/// So old the moment of the last use may be before it is written again.
const COARSE: Duration = Duration::from_secs(3600);

/// What workers say they have.
macro_rules! used {
    () => {
        "(SELECT decode(w.report ->> 'object_info', 'hex') FROM remuda.worker w \
          WHERE w.report ->> 'object_info' IS NOT NULL)"
    };
}

impl Inner {
    pub(super) async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()> {
        attempt!(self.sessions, self.try_save(hash, json, KeyId(Uuid::nil()), None))
    }

    pub(super) async fn bring_object_info(
        &self,
        hash: Sha256,
        json: &str,
        key: KeyId,
        bounds: Descriptions,
    ) -> Result<()> {
        attempt!(self.sessions, self.try_save(hash, json, key, Some(bounds)))
    }

    async fn try_save(
        &self,
        hash: Sha256,
        json: &str,
        key: KeyId,
        bounds: Option<Descriptions>,
    ) -> Result<(), Fault> {
        let transaction = self.sessions.begin().await?;
        if let Some(bounds) = bounds {
            registrations::lock_key(&transaction, key).await?;
            if !make_room(&transaction, hash, json, key, bounds).await? {
                transaction.rollback().await?;
                return Err(Error::TooMany { what: "descriptions of nodes" }.into());
            }
        }
        let statement = "INSERT INTO remuda.object_info (hash, content, saved_at) VALUES ($1, $2, now()) \
            ON CONFLICT (hash) DO NOTHING";
        let params = Columns::default().with(Type::BYTEA, &hash.0[..]).with(Type::TEXT, json);
        transaction.execute(statement, &params.params()).await?;
        let statement = "INSERT INTO remuda.object_info_use (key, hash, bytes, at) VALUES ($1, $2, $3, $4) \
            ON CONFLICT (key, hash) DO UPDATE SET at = excluded.at";
        let params = Columns::default()
            .with(Type::UUID, key.0)
            .with(Type::BYTEA, &hash.0[..])
            .with(Type::INT8, length(json))
            .with(Type::TIMESTAMPTZ, transaction.now);
        transaction.execute(statement, &params.params()).await?;
        transaction.commit().await
    }

    pub(super) async fn object_info(&self, hash: Sha256) -> Result<Option<String>> {
        let read = async || {
            let statement = "SELECT content FROM remuda.object_info WHERE hash = $1";
            let rows = self.sessions.query(statement, &[(&&hash.0[..], Type::BYTEA)]).await?;
            rows.first().map(|row| get(row, 0)).transpose()
        };
        attempt!(self.sessions, read())
    }

    pub(super) async fn forget_object_info(&self, age: Duration) -> Result<u64> {
        attempt!(self.sessions, self.try_forget_object_info(age))
    }

    async fn try_forget_object_info(&self, age: Duration) -> Result<u64, Fault> {
        let transaction = self.sessions.begin().await?;
        let now = transaction.now;
        let before = |age| now.checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH);
        let statement =
            concat!("UPDATE remuda.object_info_use SET at = $1 WHERE at < $2 AND hash IN ", used!());
        let params = Columns::default()
            .with(Type::TIMESTAMPTZ, now)
            .with(Type::TIMESTAMPTZ, before(COARSE.min(age / 2)));
        transaction.execute(statement, &params.params()).await?;
        // Kept by a program that did not note who brought it.
        let statement = "INSERT INTO remuda.object_info_use (key, hash, bytes, at) \
            SELECT '00000000-0000-0000-0000-000000000000', o.hash, octet_length(o.content), $1 \
            FROM remuda.object_info o \
            WHERE NOT EXISTS (SELECT 1 FROM remuda.object_info_use u WHERE u.hash = o.hash) \
            ON CONFLICT (key, hash) DO NOTHING";
        transaction.execute(statement, &[(&now, Type::TIMESTAMPTZ)]).await?;
        let statement = "DELETE FROM remuda.object_info_use WHERE at < $1";
        transaction.execute(statement, &[(&before(age), Type::TIMESTAMPTZ)]).await?;
        let statement = "DELETE FROM remuda.object_info o WHERE NOT EXISTS \
            (SELECT 1 FROM remuda.object_info_use u WHERE u.hash = o.hash) RETURNING o.hash";
        let gone = transaction.query(statement, &[]).await?.len();
        transaction.commit().await?;
        Ok(u64::try_from(gone).unwrap_or_default())
    }
}

fn length(json: &str) -> i64 {
    i64::try_from(json.len()).unwrap_or(i64::MAX)
}

/// Takes out what the key brought before and nobody uses, the oldest first, until there is room. Whether there is.
async fn make_room(
    transaction: &Transaction,
    hash: Sha256,
    json: &str,
    key: KeyId,
    bounds: Descriptions,
) -> Result<bool, Fault> {
    let of_others = || Columns::default().with(Type::UUID, key.0).with(Type::BYTEA, &hash.0[..]);
    let statement = "SELECT count(*), coalesce(sum(bytes), 0)::bigint FROM remuda.object_info_use \
        WHERE key = $1 AND hash <> $2";
    let rows = transaction.query(statement, &of_others().params()).await?;
    let Some(row) = rows.first() else { return Ok(true) };
    let (mut count, mut bytes): (i64, i64) = (get::<i64>(row, 0)? + 1, get::<i64>(row, 1)? + length(json));
    let most = i64::try_from(bounds.bytes).unwrap_or(i64::MAX);
    let fits = |count: i64, bytes: i64| count <= i64::from(bounds.most) && bytes <= most;
    if fits(count, bytes) {
        return Ok(true);
    }
    let statement = concat!(
        "SELECT hash, bytes FROM remuda.object_info_use WHERE key = $1 AND hash <> $2 AND hash NOT IN ",
        used!(),
        " ORDER BY at, hash"
    );
    let mut out: Vec<Vec<u8>> = Vec::new();
    for row in transaction.query(statement, &of_others().params()).await? {
        if fits(count, bytes) {
            break;
        }
        (count, bytes) = (count - 1, bytes - get::<i64>(&row, 1)?);
        out.push(get(&row, 0)?);
    }
    if !fits(count, bytes) {
        return Ok(false);
    }
    let params = Columns::default().with(Type::UUID, key.0).with(Type::BYTEA_ARRAY, out.as_slice());
    let statement = "DELETE FROM remuda.object_info_use WHERE key = $1 AND hash = ANY($2)";
    transaction.execute(statement, &params.params()).await?;
    let statement = "DELETE FROM remuda.object_info o WHERE o.hash = ANY($1) \
        AND NOT EXISTS (SELECT 1 FROM remuda.object_info_use u WHERE u.hash = o.hash)";
    transaction.execute(statement, &[(&out.as_slice(), Type::BYTEA_ARRAY)]).await?;
    Ok(true)
}
