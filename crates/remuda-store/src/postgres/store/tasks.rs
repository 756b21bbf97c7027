//! Taking tasks in, reading and ending them.

use async_trait::async_trait;
use remuda_core::{
    Attempt, Dialect, Lease, NewTask, Sha256, Task, TaskEvent, TaskId, TaskInput, Tenant, Timestamp, Version,
};

use super::super::queue::{Answer, Work};
use super::super::tasks::Weighed;
use super::PostgresStore;
use crate::{
    Counts, Error, FeedEnds, FeedPage, FeedPlace, Glance, Hide, ListQuery, LookedUp, Lookup, OriginPage,
    OriginQuery, Page, Position, Result, Submitted, TaskStore,
};

#[async_trait]
impl TaskStore for PostgresStore {
    async fn submit(&self, mut new: NewTask) -> Result<Submitted> {
        self.inner.sessions.options().secrets.seal_task(&mut new).await?;
        new.not_before = new.not_before.map(rounded);
        new.deadline = new.deadline.map(rounded);
        match self.inner.write(Work::Submit(Box::new(new))).await? {
            Answer::Submitted(submitted) => match *submitted {
                // What it left is not read in batches: that takes a while, and waits in the line of whoever it is.
                Submitted::Before(task) if task.status.is_terminal() => {
                    // It may have been forgotten since.
                    Ok(Submitted::Before(self.task(task.id).await?.unwrap_or(task)))
                }
                submitted => Ok(submitted),
            },
            Answer::Ended(_) => Err(Error::Corrupt("a submission was answered as an end".to_owned())),
        }
    }

    async fn submitted(&self, tenant: &Tenant, key: &str) -> Result<Option<(Sha256, TaskId)>> {
        let _turn = self.inner.turn().await?;
        self.inner.submitted(tenant, key).await
    }

    async fn look_up(&self, lookup: Lookup) -> Result<Option<(Task, Option<TaskInput>)>> {
        let turn = self.inner.turn().await?;
        let tenant = match self.inner.small_look_up(&lookup).await? {
            Weighed::Small(found) => return Ok(found),
            Weighed::Large(tenant) => tenant,
        };
        drop(turn);
        let _turn = self.inner.turn_of(Some(&tenant)).await?;
        self.inner.look_up(&lookup).await
    }

    async fn look_up_small(&self, lookup: &Lookup) -> Result<LookedUp> {
        let _turn = self.inner.turn().await?;
        match self.inner.small_look_up(lookup).await? {
            Weighed::Small(found) => Ok(LookedUp::Small(found)),
            Weighed::Large(_) => self.inner.weigh(lookup).await,
        }
    }

    async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        let turn = self.inner.turn().await?;
        let tenant = match self.inner.glance(id).await? {
            None => return Ok(None),
            Some(Glance { task, whole: true }) => return Ok(Some(task)),
            Some(Glance { task, whole: false }) => task.tenant,
        };
        drop(turn);
        let _turn = self.inner.turn_of(Some(&tenant)).await?;
        self.inner.task(id).await
    }

    async fn glance(&self, id: TaskId) -> Result<Option<Glance>> {
        let _turn = self.inner.turn().await?;
        self.inner.glance(id).await
    }

    async fn task_size(&self, id: TaskId) -> Result<Option<u64>> {
        let _turn = self.inner.turn().await?;
        self.inner.task_size(id).await
    }

    async fn briefly(&self, ids: &[TaskId]) -> Result<Vec<Task>> {
        let _turn = self.inner.turn().await?;
        self.inner.briefly(ids).await
    }

    async fn input_size(&self, id: TaskId) -> Result<Option<u64>> {
        let _turn = self.inner.turn().await?;
        self.inner.input_size(id).await
    }

    async fn input(&self, id: TaskId) -> Result<Option<TaskInput>> {
        let turn = self.inner.turn().await?;
        let tenant = match self.inner.small_input(id).await? {
            Weighed::Small(found) => return Ok(found),
            Weighed::Large(tenant) => tenant,
        };
        drop(turn);
        let _turn = self.inner.turn_of(Some(&tenant)).await?;
        self.inner.input(id).await
    }

    async fn attempts(&self, id: TaskId, limit: u32) -> Result<Vec<Attempt>> {
        let Some(_turn) = self.inner.turn_for(id).await? else { return Ok(Vec::new()) };
        self.inner.attempts(id, limit).await
    }

    async fn lease(&self, id: TaskId) -> Result<Option<Lease>> {
        let _turn = self.inner.turn().await?;
        self.inner.lease(id).await
    }

    async fn events(&self, id: TaskId, after: Version, limit: u32) -> Result<Vec<TaskEvent>> {
        let Some(_turn) = self.inner.turn_for(id).await? else { return Ok(Vec::new()) };
        self.inner.events(id, after, limit).await
    }

    async fn feed(&self, tenant: Option<&Tenant>, after: FeedPlace, limit: u32) -> Result<FeedPage> {
        let _turn = self.inner.turn_of(tenant).await?;
        self.inner.feed(tenant, after, limit).await
    }

    async fn feed_ends(&self) -> Result<FeedEnds> {
        let _turn = self.inner.turn().await?;
        self.inner.feed_ends().await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let _turn = self.inner.turn_of(query.tenant.as_ref()).await?;
        self.inner.list(query).await
    }

    async fn list_origin(&self, query: &OriginQuery) -> Result<OriginPage> {
        let _turn = self.inner.turn_of(Some(&query.tenant)).await?;
        self.inner.list_origin(query).await
    }

    async fn unfinished(&self, tenant: &Tenant, dialect: Dialect, client: Option<&str>) -> Result<i64> {
        let _turn = self.inner.turn_of(Some(tenant)).await?;
        self.inner.unfinished(tenant, dialect, client).await
    }

    async fn hide(&self, tenant: &Tenant, dialect: Dialect, which: &Hide) -> Result<u64> {
        let _turn = self.inner.turn_to_write(tenant, 0).await?;
        self.inner.hide(tenant, dialect, which).await
    }

    async fn position(&self, id: TaskId) -> Result<Option<Position>> {
        let Some(_turn) = self.inner.turn_for(id).await? else { return Ok(None) };
        self.inner.position(id).await
    }

    async fn counts(&self, tenant: Option<&Tenant>) -> Result<Counts> {
        let _turn = self.inner.turn().await?;
        self.inner.counts(tenant).await
    }

    async fn cancel(&self, id: TaskId) -> Result<Task> {
        let _turn = self.inner.turn_to_change(id).await?;
        self.inner.cancel(id).await
    }

    async fn hasten(&self, id: TaskId) -> Result<Task> {
        let _turn = self.inner.turn_to_change(id).await?;
        self.inner.hasten(id).await
    }
}

/// The database keeps microseconds; a finer moment would come back changed.
fn rounded(moment: Timestamp) -> Timestamp {
    let micros = moment.as_microsecond().max(Timestamp::UNIX_EPOCH.as_microsecond());
    Timestamp::from_microsecond(micros).unwrap_or(moment)
}
