//! Ways to read: at once where it is asked, or on a blocking thread. What may be much waits in the line of the tenant whose it
//! is, so that whoever has most and asks most leaves readers for the others.

use remuda_core::{TaskId, Tenant};
use rusqlite::Connection;

use super::fault::Outcome;
use super::reads::{self, Looked};
use super::store::SqliteStore;
use crate::Result;
use crate::requests::SMALL;
use crate::turns::Party;

/// In whose line something waits.
#[derive(Debug)]
pub(super) enum Whose {
    Tenant(Tenant),
    /// In that of its tenant.
    Task(TaskId),
}

impl SqliteStore {
    pub(super) async fn read<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    {
        self.readers.read(query).await
    }

    /// Asks about what a tenant has stored, which may be much.
    pub(super) async fn read_of<T, F>(&self, tenant: Option<&Tenant>, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    {
        let _turn = match tenant {
            Some(tenant) => Some(self.lines.wait(tenant).await?),
            None => None,
        };
        self.readers.read(query).await
    }

    /// Asks about one thing.
    pub(super) async fn look<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    {
        self.readers.look(query).await
    }

    /// Asks about one thing that may be large: then it is read on a blocking thread, in the line of whoever it is.
    pub(super) async fn look_or_read<T, F>(&self, whose: Whose, query: F) -> Result<Option<T>>
    where
        T: Send + 'static,
        F: Fn(&Connection, usize) -> Outcome<Looked<Option<T>>> + Clone + Send + 'static,
    {
        let small = query.clone();
        match self.look(move |db| small(db, SMALL)).await? {
            Looked::Found(found) => Ok(found),
            Looked::Large => {
                let whole = move |db: &Connection| query(db, usize::MAX).map(Looked::found);
                match whose {
                    Whose::Tenant(tenant) => self.read_of(Some(&tenant), whole).await,
                    Whose::Task(id) => Ok(self.read_with(id, whole).await?.flatten()),
                }
            }
        }
    }

    /// Asks about what belongs to a task, which may be much. `None`: there is no such task.
    pub(super) async fn read_with<T, F>(&self, task: TaskId, query: F) -> Result<Option<T>>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    {
        let Some(tenant) = self.look(move |db| reads::whose(db, task)).await? else { return Ok(None) };
        self.read_of(Some(&tenant), query).await.map(Some)
    }

    /// Whose turn it is to have something of this task written.
    pub(super) async fn party(&self, task: TaskId) -> Result<Party> {
        let tenant = self.look(move |db| reads::whose(db, task)).await?;
        Ok(tenant.map_or(Party::House, Party::Tenant))
    }
}
