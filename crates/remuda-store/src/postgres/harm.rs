//! Tasks that harmed a process.

use postgres_types::Type;
use remuda_core::{Fence, Harm, Harmed, OwnerId, Status, TaskId, harm, transition};

use super::columns::Columns;
use super::fault::Fault;
use super::inner::Inner;
use super::rows::get;
use super::save::{Save, Tidings};
use super::session::{Transaction, attempt};
use super::tasks::lock_all;
use crate::{Error, Result};

impl Inner {
    /// Counts an incident; with enough of them the task ends.
    pub(super) async fn note_harm(
        &self,
        id: TaskId,
        holder: Option<(OwnerId, Fence)>,
        harm: Harm,
    ) -> Result<Harmed> {
        let done: Result<(Harmed, Tidings)> = attempt!(self.sessions, self.try_note_harm(id, holder, &harm));
        let (harmed, tidings) = done?;
        self.announce(tidings);
        Ok(harmed)
    }

    async fn try_note_harm(
        &self,
        id: TaskId,
        holder: Option<(OwnerId, Fence)>,
        new: &Harm,
    ) -> Result<(Harmed, Tidings), Fault> {
        let transaction = self.sessions.begin().await?;
        let now = transaction.now;
        let Some(mut task) = lock_all(&transaction, &[id.0]).await?.pop() else {
            transaction.rollback().await?;
            // A holder of a lease on nothing holds nothing.
            return match holder {
                Some(_) => Err(Error::Fenced.into()),
                None => Ok((Harmed { count: 0, set_aside: false }, Tidings::default())),
            };
        };
        if let Some((owner, fence)) = holder
            && (task.status != Status::Running
                || task.fence != fence
                || !is_owner(&transaction, id, owner).await?)
        {
            transaction.rollback().await?;
            return Err(Error::Fenced.into());
        }
        let text = serde_json::to_string(new).map_err(|error| Error::Corrupt(error.to_string()))?;
        let params = Columns::default()
            .with(Type::UUID, id.0)
            .with(Type::TIMESTAMPTZ, new.at)
            .with(Type::TEXT, text.as_str());
        let insert = "INSERT INTO remuda.harm (task, at, harm) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        transaction.query(insert, &params.params()).await?;
        let known = known(&transaction, id).await?;
        let count = known.len();
        if task.status.is_terminal() || !harm::is_enough(count) {
            transaction.commit().await?;
            return Ok((Harmed { count, set_aside: false }, Tidings::default()));
        }
        let before = task.status;
        let ended = transition::set_aside(&mut task, now, harm::failure(&known))
            .map_err(|error| Error::Corrupt(error.to_string()))?;
        let mut save = Save::default();
        if before == Status::Running {
            save.ended(&task, ended, now);
            save.news(id);
        } else {
            save.changed(before, &task, Some(ended.event), now);
        }
        let tidings = save.commit_in(transaction, self.side_shard()).await?;
        Ok((Harmed { count, set_aside: true }, tidings))
    }
}

/// Whether the lease on a task is this owner's. The task must be locked.
async fn is_owner(transaction: &Transaction, id: TaskId, owner: OwnerId) -> Result<bool, Fault> {
    let select = "SELECT 1 FROM remuda.lease WHERE task = $1 AND owner = $2";
    let rows = transaction.query(select, &[(&id.0, Type::UUID), (&owner.0, Type::UUID)]).await?;
    Ok(!rows.is_empty())
}

/// Everything that is known of a task, oldest first.
async fn known(transaction: &Transaction, id: TaskId) -> Result<Vec<Harm>, Fault> {
    let select = "SELECT harm FROM remuda.harm WHERE task = $1 ORDER BY at";
    let rows = transaction.query(select, &[(&id.0, Type::UUID)]).await?;
    let read =
        |text: &str| serde_json::from_str(text).map_err(|error| Error::Corrupt(error.to_string()).into());
    rows.iter().map(|row| read(get::<&str>(row, 0)?)).collect()
}
