//! Taking tasks in, reading and ending them.

use async_trait::async_trait;
use remuda_core::{
    Attempt, Dialect, Lease, NewTask, Sha256, Task, TaskEvent, TaskId, TaskInput, Tenant, Version,
};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::super::asking::Whose;
use super::super::command::{Command, Submit};
use super::super::{feed, lists, origins, pieces, reads};
use super::SqliteStore;
use crate::requests::SMALL;
use crate::{
    Counts, Error, FeedEnds, FeedPage, FeedPlace, Glance, Hide, ListQuery, LookedUp, Lookup, OriginPage,
    OriginQuery, Page, Position, Result, Submitted, TaskStore, turns,
};

/// How many tasks are hidden in one transaction: others wait for it.
const HIDDEN_AT_ONCE: usize = 500;

#[async_trait]
impl TaskStore for SqliteStore {
    async fn submit(&self, mut new: NewTask) -> Result<Submitted> {
        self.settings.secrets().seal_task(&mut new).await?;
        let size = turns::size_of_input(&new.input);
        let bytes = new.input.stored_bytes(new.metadata.as_ref());
        let (laid, _turn) = match size > pieces::PIECE {
            true => (Some(self.lay_down_input(&mut new).await?), None),
            false => (None, self.turns.take(&new.tenant, size).await?),
        };
        let (reply, answer) = oneshot::channel();
        self.send(Command::Submit(Box::new(Submit { new, bytes, laid, _turn, done: None, reply }))).await?;
        match answer.await.unwrap_or(Err(Error::Closed))? {
            // What it left the writer does not read: that takes a while, and waits in the line of whoever it is.
            Submitted::Before(task) if task.status.is_terminal() => {
                let (id, whose) = (task.id, Whose::Tenant(task.tenant.clone()));
                let whole =
                    self.look_or_read(whose, move |db, most| reads::task_within(db, id, most)).await?;
                // It may have been forgotten since.
                Ok(Submitted::Before(whole.unwrap_or(task)))
            }
            submitted => Ok(submitted),
        }
    }

    async fn submitted(&self, tenant: &Tenant, key: &str) -> Result<Option<(Sha256, TaskId)>> {
        let (tenant, key) = (tenant.clone(), key.to_owned());
        self.look(move |db| reads::submitted(db, &tenant, &key)).await
    }

    async fn look_up(&self, lookup: Lookup) -> Result<Option<(Task, Option<TaskInput>)>> {
        let whose = Whose::Tenant(lookup.tenant.clone());
        self.look_or_read(whose, move |db, most| reads::look_up(db, &lookup, most)).await
    }

    async fn look_up_small(&self, lookup: &Lookup) -> Result<LookedUp> {
        let lookup = lookup.clone();
        self.look(move |db| reads::look_up_small(db, &lookup, SMALL)).await
    }

    async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        self.look_or_read(Whose::Task(id), move |db, most| reads::task_within(db, id, most)).await
    }

    async fn glance(&self, id: TaskId) -> Result<Option<Glance>> {
        self.look(move |db| reads::glance(db, id, SMALL)).await
    }

    async fn task_size(&self, id: TaskId) -> Result<Option<u64>> {
        self.look(move |db| reads::task_size(db, id)).await
    }

    async fn briefly(&self, ids: &[TaskId]) -> Result<Vec<Task>> {
        let ids = ids.to_vec();
        self.read(move |db| ids.iter().filter_map(|id| reads::brief(db, *id).transpose()).collect()).await
    }

    async fn input_size(&self, id: TaskId) -> Result<Option<u64>> {
        self.look(move |db| reads::input_size(db, id)).await
    }

    async fn input(&self, id: TaskId) -> Result<Option<TaskInput>> {
        self.look_or_read(Whose::Task(id), move |db, most| reads::input_within(db, id, most)).await
    }

    async fn attempts(&self, id: TaskId, limit: u32) -> Result<Vec<Attempt>> {
        let attempts = move |db: &Connection, most| reads::attempts(db, id, limit, most);
        Ok(self.look_or_read(Whose::Task(id), attempts).await?.unwrap_or_default())
    }

    async fn lease(&self, id: TaskId) -> Result<Option<Lease>> {
        self.look(move |db| reads::lease(db, id)).await
    }

    async fn events(&self, id: TaskId, after: Version, limit: u32) -> Result<Vec<TaskEvent>> {
        let events = move |db: &Connection, most| reads::events(db, id, after, limit, most);
        Ok(self.look_or_read(Whose::Task(id), events).await?.unwrap_or_default())
    }

    async fn feed(&self, tenant: Option<&Tenant>, after: FeedPlace, limit: u32) -> Result<FeedPage> {
        let tenant = tenant.cloned();
        let whose = tenant.clone();
        self.read_of(whose.as_ref(), move |db| feed::read(db, tenant.as_ref(), after, limit)).await
    }

    async fn feed_ends(&self) -> Result<FeedEnds> {
        self.read(feed::ends).await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let query = query.clone();
        let tenant = query.tenant.clone();
        self.read_of(tenant.as_ref(), move |db| lists::list(db, &query)).await
    }

    async fn list_origin(&self, query: &OriginQuery) -> Result<OriginPage> {
        let query = query.clone();
        let tenant = query.tenant.clone();
        self.read_of(Some(&tenant), move |db| origins::list(db, &query)).await
    }

    async fn unfinished(&self, tenant: &Tenant, dialect: Dialect, client: Option<&str>) -> Result<i64> {
        let client = (tenant.clone(), dialect, client.map(str::to_owned));
        match self.unfinished.of(&client) {
            Some(n) => Ok(n),
            // By the writer, so that nothing is written between the count and what is remembered.
            None => self.write(move |batch| batch.count_unfinished(&client)).await,
        }
    }

    async fn hide(&self, tenant: &Tenant, dialect: Dialect, which: &Hide) -> Result<u64> {
        let mut hidden = 0;
        match which {
            Hide::Tasks(tasks) => {
                for some in tasks.chunks(HIDDEN_AT_ONCE) {
                    let (tenant, some) = (tenant.clone(), some.to_vec());
                    hidden += self.write(move |batch| batch.hide(&tenant, dialect, &some)).await?;
                }
            }
            Hide::Ended => loop {
                let (tenant, limit) = (tenant.clone(), HIDDEN_AT_ONCE as u64);
                let some = self.write(move |batch| batch.hide_ended(&tenant, dialect, limit)).await?;
                hidden += some;
                if some < limit {
                    break;
                }
            },
        }
        Ok(hidden)
    }

    async fn position(&self, id: TaskId) -> Result<Option<Position>> {
        let lanes = self.lanes.clone();
        Ok(self.read_with(id, move |db| reads::position(db, &lanes, id)).await?.flatten())
    }

    async fn counts(&self, tenant: Option<&Tenant>) -> Result<Counts> {
        let tenant = tenant.cloned();
        self.read(move |db| reads::counts(db, tenant.as_ref())).await
    }

    async fn cancel(&self, id: TaskId) -> Result<Task> {
        self.write(move |batch| batch.cancel(id)).await
    }

    async fn hasten(&self, id: TaskId) -> Result<Task> {
        self.write(move |batch| batch.hasten(id)).await
    }
}
