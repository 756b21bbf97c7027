//! Sealed secrets: those of claimed tasks, and the key between servers.

use postgres_types::Type;
use remuda_core::{Claim, Installation, TaskId};
use uuid::Uuid;

use super::fault::Fault;
use super::inner::Inner;
use super::rows::get;
use super::session::{Sessions, attempt};
use crate::Result;
use crate::keyring::ClusterKey;

/// The winner's key counts when several processes make one at the same moment.
const SEAL: &str =
    "INSERT INTO remuda.sealed_installation (cluster_key) VALUES ($1) ON CONFLICT (one) DO NOTHING";

/// Only what was read is replaced.
const SEAL_AGAIN: &str = "UPDATE remuda.sealed_installation SET cluster_key = $1 WHERE cluster_key = $2";

/// An upgrade of all servers is over by then: what is sealed by one that starts later needs no further look.
const SETTLE: &str =
    "UPDATE remuda.sealed_installation SET settled = true WHERE since < now() - interval '1 day'";

impl Inner {
    /// Puts the secrets of claimed tasks back. Only tasks that brought some are looked for; what cannot be read now stays
    /// marked as sealed, because by now the claims are durable.
    pub(super) async fn open_secrets(&self, claims: impl Iterator<Item = &mut Claim>) {
        let is_sealed =
            |claim: &&mut Claim| claim.input.extra.as_ref().is_some_and(|extra| !extra.sealed.is_empty());
        let mut claims: Vec<&mut Claim> = claims.filter(is_sealed).collect();
        let unread =
            |claim: &&mut Claim| claim.input.extra.as_ref().is_some_and(|extra| extra.envelope.is_none());
        let ids: Vec<Uuid> =
            claims.iter().filter(|claim| unread(claim)).map(|claim| claim.task.id.0).collect();
        if !ids.is_empty() {
            let read: Result<Vec<(TaskId, Vec<u8>)>> = attempt!(self.sessions, self.read_secrets(&ids));
            match read {
                Ok(read) => {
                    for (task, envelope) in read {
                        let found = claims.iter_mut().find(|claim| claim.task.id == task);
                        if let Some(extra) = found.and_then(|claim| claim.input.extra.as_mut()) {
                            extra.envelope = Some(envelope);
                        }
                    }
                }
                Err(error) => tracing::warn!(%error, "the secrets of claimed tasks could not be read"),
            }
        }
        let secrets = &self.sessions.options().secrets;
        for claim in &mut claims {
            secrets.open_task(claim.task.id, &mut claim.input);
        }
    }

    async fn read_secrets(&self, ids: &[Uuid]) -> Result<Vec<(TaskId, Vec<u8>)>, Fault> {
        let statement = "SELECT task, sealed FROM remuda.secret WHERE task = ANY($1)";
        let rows = self.sessions.query(statement, &[(&ids, Type::UUID_ARRAY)]).await?;
        rows.iter().map(|row| Ok((TaskId(get(row, 0)?), get(row, 1)?))).collect()
    }
}

/// The installation with the key between servers that counts.
pub(super) async fn installation(sessions: &Sessions, mut plain: Installation) -> Result<Installation> {
    let secrets = &sessions.options().secrets;
    // The second round reads what won, ours or another's.
    for _ in 0..3 {
        let sealed: Result<Option<Vec<u8>>> = attempt!(sessions, sealed(sessions));
        let sealed = sealed?;
        match secrets.cluster_key(plain.id, sealed.as_deref())? {
            ClusterKey::Plain => return Ok(plain),
            ClusterKey::Known(key) => {
                settle(sessions).await?;
                plain.cluster_key = key;
                return Ok(plain);
            }
            ClusterKey::Seal(_, envelope) => {
                let written: Result<()> = attempt!(sessions, seal(sessions, &envelope, sealed.as_deref()));
                written?;
            }
        }
    }
    Err(crate::Error::WrongSecretKey(
        "other servers of this installation seal with another key at this moment".to_owned(),
    ))
}

async fn sealed(sessions: &Sessions) -> Result<Option<Vec<u8>>, Fault> {
    let rows = sessions.query("SELECT cluster_key FROM remuda.sealed_installation", &[]).await?;
    rows.first().map(|row| get(row, 0)).transpose()
}

async fn seal(sessions: &Sessions, envelope: &[u8], before: Option<&[u8]>) -> Result<(), Fault> {
    match before {
        None => sessions.query(SEAL, &[(&envelope, Type::BYTEA)]).await?,
        Some(before) => {
            sessions.query(SEAL_AGAIN, &[(&envelope, Type::BYTEA), (&before, Type::BYTEA)]).await?
        }
    };
    Ok(())
}

/// Seals what servers of the release before have kept in plain text, also while some of them are still there.
async fn settle(sessions: &Sessions) -> Result<()> {
    let settled: Result<bool> = attempt!(sessions, is_settled(sessions));
    if settled? {
        return Ok(());
    }
    seal_before(sessions).await?;
    let written: Result<()> = attempt!(sessions, async { sessions.query(SETTLE, &[]).await.map(|_| ()) });
    written
}

async fn is_settled(sessions: &Sessions) -> Result<bool, Fault> {
    let rows = sessions.query("SELECT settled FROM remuda.sealed_installation", &[]).await?;
    Ok(rows.first().map(|row| get(row, 0)).transpose()?.unwrap_or(false))
}

async fn seal_before(sessions: &Sessions) -> Result<()> {
    let mut after = Some(Uuid::nil());
    let mut count = 0;
    while let Some(from) = after {
        let done: Result<(Option<Uuid>, u64)> = attempt!(sessions, seal_some(sessions, from));
        let (last, sealed) = done?;
        after = last;
        count += sealed;
    }
    if count > 0 {
        tracing::info!(tasks = count, "sealed what an earlier release had kept in plain text");
    }
    Ok(())
}

/// The next few tasks; the last of them, and how many were sealed.
async fn seal_some(sessions: &Sessions, after: Uuid) -> Result<(Option<Uuid>, u64), Fault> {
    let transaction = sessions.begin().await?;
    // A word of every name that is secret (see `remuda_core::secrets`), or an escape in which one could hide.
    let statement = "SELECT i.task, i.extra FROM remuda.task_input i \
        WHERE i.extra ~* 'key|auth|bearer|cookie|credential|jwt|pass|pwd|secret|token|\\\\u' AND i.task > $1 \
        ORDER BY i.task LIMIT 500";
    let rows = transaction.query(statement, &[(&after, Type::UUID)]).await?;
    let mut count = 0;
    let mut last = None;
    for row in &rows {
        let id: Uuid = get(row, 0)?;
        last = Some(id);
        let Some((extra, envelope)) = sessions.options().secrets.seal_stored(TaskId(id), get(row, 1)?)?
        else {
            continue;
        };
        // Looked at under its lock: a task that ends meanwhile leaves nothing behind.
        let locked = "SELECT finished_at IS NULL FROM remuda.task WHERE id = $1 FOR UPDATE";
        let found = transaction.query(locked, &[(&id, Type::UUID)]).await?;
        let unfinished = found.first().map(|row| get(row, 0)).transpose()?.unwrap_or(false);
        let update = "UPDATE remuda.task_input SET extra = $2 WHERE task = $1";
        transaction.execute(update, &[(&id, Type::UUID), (&extra, Type::TEXT)]).await?;
        if unfinished {
            let insert = "INSERT INTO remuda.secret (task, sealed) VALUES ($1, $2) ON CONFLICT (task) \
                DO UPDATE SET sealed = excluded.sealed";
            transaction.execute(insert, &[(&id, Type::UUID), (&envelope, Type::BYTEA)]).await?;
        }
        count += 1;
    }
    transaction.commit().await?;
    Ok((last, count))
}
