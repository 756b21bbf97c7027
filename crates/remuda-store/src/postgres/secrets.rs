//! Sealed secrets: those of claimed tasks, and the key between servers.

use postgres_types::Type;
use remuda_core::{Claim, Installation, PromptExtra, TaskId};
use uuid::Uuid;

use super::fault::Fault;
use super::inner::Inner;
use super::rows::get;
use super::session::{Sessions, attempt};
use crate::Result;
use crate::keyring::{ClusterKey, Keyring, size_of};

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
            let task = claim.task.id;
            let Some(mut extra) = claim.input.extra.take() else { continue };
            let size = size_of(&extra);
            let open = move |keys: &Keyring| {
                keys.open_extra(task, &mut extra);
                extra
            };
            // Only a runtime that ends cancels such work. Without its secrets a task must not run.
            let lost = |_| Box::new(PromptExtra { sealed: vec!["".to_owned()], ..PromptExtra::default() });
            claim.input.extra = Some(secrets.beside(size, open).await.unwrap_or_else(lost));
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

/// Seals what servers of the release before have kept in plain text. Some of them may still be there, and cannot open what
/// is sealed: for a day, tasks that wait are left to them.
pub(super) async fn settle(sessions: &Sessions) -> Result<()> {
    let found: Result<(bool, bool)> = attempt!(sessions, is_settled(sessions));
    let (settled, late) = found?;
    if settled {
        return Ok(());
    }
    seal_before(sessions, late).await?;
    if late {
        let written: Result<()> = attempt!(sessions, execute(sessions, SETTLE));
        written?;
    }
    Ok(())
}

/// The same between two starts, once the day is over.
pub(super) async fn settle_late(sessions: &Sessions) -> Result<()> {
    let found: Result<(bool, bool)> = attempt!(sessions, is_settled(sessions));
    match found? {
        (false, true) => settle(sessions).await,
        _ => Ok(()),
    }
}

/// Whether nothing is in plain text any more, and whether no server of the release before is there.
async fn is_settled(sessions: &Sessions) -> Result<(bool, bool), Fault> {
    let statement = "SELECT settled, since < now() - interval '1 day' FROM remuda.sealed_installation";
    let rows = sessions.query(statement, &[]).await?;
    let Some(row) = rows.first() else { return Ok((true, false)) };
    Ok((get(row, 0)?, get(row, 1)?))
}

async fn execute(sessions: &Sessions, statement: &str) -> Result<(), Fault> {
    sessions.query(statement, &[]).await.map(|_| ())
}

async fn seal_before(sessions: &Sessions, waiting_too: bool) -> Result<()> {
    let mut after = Uuid::nil();
    let mut count = 0;
    loop {
        let some: Result<Vec<(Uuid, bool)>> = attempt!(sessions, suspects(sessions, after));
        let some = some?;
        let Some((last, _)) = some.last() else { break };
        after = *last;
        // One at a time: each may be as long as a request.
        for (id, _) in some.into_iter().filter(|(_, suspect)| *suspect) {
            let sealed: Result<bool> = attempt!(sessions, seal_one(sessions, id, waiting_too));
            count += u64::from(sealed?);
        }
    }
    if count > 0 {
        tracing::info!(tasks = count, "sealed what an earlier release had kept in plain text");
    }
    Ok(())
}

/// The next tasks, and whether one may have a secret in plain text: a word of every name that is secret (see
/// `remuda_core::secrets`), or an escape in which one could hide.
async fn suspects(sessions: &Sessions, after: Uuid) -> Result<Vec<(Uuid, bool)>, Fault> {
    let statement = "SELECT task, extra ~* 'key|auth|bearer|cookie|credential|jwt|pass|pwd|secret|token|\\\\u' FROM \
        (SELECT task, extra FROM remuda.task_input WHERE extra IS NOT NULL AND task > $1 ORDER BY task LIMIT 100) i \
        ORDER BY task";
    let rows = sessions.query(statement, &[(&after, Type::UUID)]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
}

/// Seals the secrets of one task, if it has any.
async fn seal_one(sessions: &Sessions, id: Uuid, waiting_too: bool) -> Result<bool, Fault> {
    let transaction = sessions.begin().await?;
    // Looked at under its lock: a task that ends meanwhile leaves nothing behind.
    let locked = "SELECT t.finished_at IS NULL, i.extra FROM remuda.task t JOIN remuda.task_input i ON i.task = t.id \
        WHERE t.id = $1 FOR UPDATE OF t";
    let rows = transaction.query(locked, &[(&id, Type::UUID)]).await?;
    let Some(row) = rows.first() else { return Ok(false) };
    let (unfinished, extra): (bool, Option<&str>) = (get(row, 0)?, get(row, 1)?);
    if unfinished && !waiting_too {
        return Ok(false);
    }
    let secrets = &sessions.options().secrets;
    let sealed = extra.map(|extra| secrets.seal_stored(TaskId(id), extra)).transpose()?;
    let Some((extra, envelope)) = sealed.flatten() else { return Ok(false) };
    let update = "UPDATE remuda.task_input SET extra = $2 WHERE task = $1";
    transaction.execute(update, &[(&id, Type::UUID), (&extra, Type::TEXT)]).await?;
    if unfinished {
        let insert = "INSERT INTO remuda.secret (task, sealed) VALUES ($1, $2) ON CONFLICT (task) \
            DO UPDATE SET sealed = excluded.sealed";
        transaction.execute(insert, &[(&id, Type::UUID), (&envelope, Type::BYTEA)]).await?;
    }
    transaction.commit().await?;
    Ok(true)
}
