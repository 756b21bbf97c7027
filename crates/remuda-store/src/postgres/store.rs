//! The contract, handed on to the parts that keep it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::transition::Ending;
use remuda_core::{
    Attempt, Claim, Dialect, Fence, Harm, Harmed, Installation, KeyId, KeyRecord, Lane, LaneId, Lease,
    LeaseRef, NewTask, OwnerId, Requirements, Sha256, Task, TaskEvent, TaskId, TaskInput, Tenant, Timestamp,
    Version, Worker, WorkerId, WorkerSpec,
};
use tokio::sync::broadcast;

use super::inner::Inner;
use super::queue::{Answer, Work};
use super::tasks::Weighed;
use crate::together::Together;
use crate::turns::Party;
use crate::{
    Acquired, AdoptRequest, Asset, BeatReply, BeatRequest, Change, ClaimRequest, Counts, Descriptions,
    Document, DocumentInfo, EndReply, Error, FeedEnds, FeedPage, FeedPlace, Hide, ListQuery, Lookup, Options,
    OriginPage, OriginQuery, Page, Position, Registrant, Result, Store, Submitted, Tidied,
};

/// The queue in a PostgreSQL database, shared by any number of processes.
///
/// ```no_run
/// # async fn example() -> remuda_store::Result<()> {
/// use remuda_store::{Options, PostgresStore, Store as _};
/// let owner = remuda_core::OwnerId(uuid::Uuid::new_v4());
/// let store = PostgresStore::connect("postgres://remuda@127.0.0.1/remuda", Options::new(owner)).await?;
/// store.ping().await?;
/// store.close().await;
/// # Ok(()) }
/// ```
pub struct PostgresStore {
    inner: Arc<Inner>,
    workers: Together<Vec<Worker>>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("installation", &self.inner.installation.id)
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects to the database at `url` (`postgres://user:password@host:port/database?sslmode=…`), makes or
    /// updates the schema `remuda` in it, and is ready.
    pub async fn connect(url: &str, options: Options) -> Result<Self> {
        Ok(Self { inner: Inner::start(url, options).await?, workers: Together::default() })
    }

    async fn ended(&self, lease: LeaseRef, work: Work) -> Result<EndReply> {
        let answer = self.inner.write(work).await?;
        self.inner.beats.forget(lease);
        match answer {
            Answer::Ended(reply) => Ok(reply),
            Answer::Submitted(_) => Err(Error::Corrupt("an end was answered as a submission".to_owned())),
        }
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        // Whoever did not wait for `close` still leaves nothing running.
        self.inner.queue.close();
        self.inner.stop.cancel();
    }
}

/// The database keeps microseconds; a finer moment would come back changed.
fn rounded(moment: Timestamp) -> Timestamp {
    let micros = moment.as_microsecond().max(Timestamp::UNIX_EPOCH.as_microsecond());
    Timestamp::from_microsecond(micros).unwrap_or(moment)
}

#[async_trait]
impl Store for PostgresStore {
    async fn installation(&self) -> Result<Installation> {
        self.inner.open()?;
        Ok(self.inner.installation.clone())
    }

    async fn ping(&self) -> Result<()> {
        self.inner.open()?;
        self.inner.ping().await
    }

    async fn submit(&self, mut new: NewTask) -> Result<Submitted> {
        self.inner.sessions.options().secrets.seal_task(&mut new).await?;
        new.not_before = new.not_before.map(rounded);
        new.deadline = new.deadline.map(rounded);
        match self.inner.write(Work::Submit(Box::new(new))).await? {
            Answer::Submitted(submitted) => Ok(*submitted),
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

    async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        let turn = self.inner.turn().await?;
        let tenant = match self.inner.small_task(id).await? {
            Weighed::Small(found) => return Ok(found),
            Weighed::Large(tenant) => tenant,
        };
        drop(turn);
        let _turn = self.inner.turn_of(Some(&tenant)).await?;
        self.inner.task(id).await
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

    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>> {
        self.inner.claim(request).await
    }

    async fn beat(&self, request: BeatRequest) -> Result<BeatReply> {
        self.inner.open()?;
        self.inner.beat(request).await
    }

    async fn end(&self, owner: OwnerId, lease: LeaseRef, ending: Ending) -> Result<EndReply> {
        self.ended(lease, Work::End(owner, lease, Box::new(ending))).await
    }

    async fn give_back(
        &self,
        owner: OwnerId,
        lease: LeaseRef,
        learnt: Option<Requirements>,
    ) -> Result<EndReply> {
        self.inner.beats.give_back(lease);
        self.ended(lease, Work::GiveBack(owner, lease, learnt)).await
    }

    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>> {
        self.inner.open()?;
        self.inner.adopt(&request).await
    }

    async fn note_harm(&self, task: TaskId, holder: Option<(OwnerId, Fence)>, harm: Harm) -> Result<Harmed> {
        self.inner.open()?;
        self.inner.note_harm(task, holder, harm).await
    }

    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>> {
        self.inner.open()?;
        self.inner.leases(worker).await
    }

    async fn leases_for(&self, owner: OwnerId, worker: &WorkerId) -> Result<Vec<Lease>> {
        self.inner.open()?;
        self.inner.leases_for(owner, worker).await
    }

    async fn acquire_worker(&self, spec: WorkerSpec, owner: OwnerId) -> Result<Acquired> {
        self.inner.open()?;
        self.inner.acquire_worker(&spec, owner).await
    }

    async fn register_worker(&self, spec: WorkerSpec, owner: OwnerId, by: Registrant) -> Result<Acquired> {
        self.inner.open()?;
        self.inner.register_worker(&spec, owner, &by).await
    }

    async fn inherit(&self, owner: OwnerId, key: KeyId, grace: Duration) -> Result<bool> {
        self.inner.open()?;
        self.inner.inherit(owner, key, grace).await
    }

    async fn release_worker(&self, owner: OwnerId, id: &WorkerId, fence: Fence) -> Result<()> {
        self.inner.open()?;
        self.inner.release_worker(owner, id, fence).await
    }

    async fn forget_worker(&self, id: &WorkerId) -> Result<()> {
        self.inner.open()?;
        self.inner.forget_worker(id).await
    }

    async fn workers(&self) -> Result<Arc<Vec<Worker>>> {
        let read = async || {
            let _turn = self.inner.turn().await?;
            self.inner.workers().await
        };
        self.workers.ask(read).await
    }

    async fn registrants(&self) -> Result<HashMap<WorkerId, KeyId>> {
        let _turn = self.inner.turn().await?;
        self.inner.registrants().await
    }

    async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()> {
        let _turn = self.inner.turn_for_large(Party::House, json.len()).await?;
        self.inner.save_object_info(hash, json).await
    }

    async fn bring_object_info(
        &self,
        hash: Sha256,
        json: &str,
        key: KeyId,
        bounds: Descriptions,
    ) -> Result<()> {
        let _turn = self.inner.turn_for_large(Party::Key(key), json.len()).await?;
        self.inner.bring_object_info(hash, json, key, bounds).await
    }

    async fn forget_object_info(&self, age: Duration) -> Result<u64> {
        self.inner.open()?;
        // Once an hour in the whole installation, as the rest of this is.
        super::secrets::settle_late(&self.inner.sessions).await?;
        self.inner.forget_object_info(age).await
    }

    async fn object_info(&self, hash: Sha256) -> Result<Option<String>> {
        let _turn = self.inner.turn().await?;
        self.inner.object_info(hash).await
    }

    async fn requires(&self, lane: &LaneId) -> Result<Option<Requirements>> {
        self.inner.learn_lanes(&[lane.clone()].into()).await?;
        Ok(self.inner.lanes.requires(lane).map(|requires| (*requires).clone()))
    }

    async fn lanes(&self) -> Result<Vec<Lane>> {
        let _turn = self.inner.turn().await?;
        self.inner.load_lanes().await?;
        Ok(self.inner.lanes.all())
    }

    async fn lead(&self, what: &str, holder: OwnerId, ttl: Duration) -> Result<Option<Fence>> {
        self.inner.open()?;
        self.inner.lead(what, holder, ttl).await
    }

    async fn resign(&self, what: &str, holder: OwnerId) -> Result<()> {
        self.inner.open()?;
        self.inner.resign(what, holder).await
    }

    async fn add_key(&self, key: KeyRecord) -> Result<()> {
        self.inner.open()?;
        self.inner.add_key(&key).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>> {
        let _turn = self.inner.turn().await?;
        self.inner.keys().await
    }

    async fn revoke_key(&self, id: KeyId) -> Result<KeyRecord> {
        self.inner.open()?;
        self.inner.revoke_key(id).await
    }

    async fn add_asset(&self, asset: Asset) -> Result<()> {
        let _turn = self.inner.turn_to_write(&asset.tenant, 0).await?;
        self.inner.add_asset(&asset).await
    }

    async fn asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<Option<Asset>> {
        let _turn = self.inner.turn().await?;
        self.inner.asset(tenant, sha256).await
    }

    async fn asset_named(&self, tenant: &Tenant, filename: &str) -> Result<Option<Asset>> {
        let _turn = self.inner.turn().await?;
        self.inner.asset_named(tenant, filename).await
    }

    async fn assets(&self, tenant: &Tenant, limit: u32) -> Result<Vec<Asset>> {
        let _turn = self.inner.turn_of(Some(tenant)).await?;
        self.inner.assets(tenant, limit).await
    }

    async fn document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<Option<Document>> {
        let _turn = self.inner.turn_of(Some(tenant)).await?;
        self.inner.document(tenant, space, path).await
    }

    async fn put_document(
        &self,
        tenant: &Tenant,
        space: &str,
        path: &str,
        bytes: Vec<u8>,
        replace: bool,
    ) -> Result<Option<DocumentInfo>> {
        let _turn = self.inner.turn_to_write(tenant, bytes.len()).await?;
        self.inner.put_document(tenant, space, path, &bytes, replace).await
    }

    async fn documents(&self, tenant: &Tenant, space: &str, prefix: &str) -> Result<Vec<DocumentInfo>> {
        let _turn = self.inner.turn_of(Some(tenant)).await?;
        self.inner.documents(tenant, space, prefix).await
    }

    async fn delete_document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<bool> {
        let _turn = self.inner.turn_to_write(tenant, 0).await?;
        self.inner.delete_document(tenant, space, path).await
    }

    async fn tidy(&self) -> Result<Tidied> {
        self.inner.open()?;
        self.inner.tidy().await
    }

    async fn unswept(&self, limit: u32) -> Result<Vec<Task>> {
        let _turn = self.inner.turn().await?;
        self.inner.unswept(limit).await
    }

    async fn swept(&self, tasks: &[TaskId]) -> Result<()> {
        self.inner.open()?;
        self.inner.swept(tasks).await
    }

    async fn outdated(&self, age: Duration, limit: u32) -> Result<Vec<TaskId>> {
        let _turn = self.inner.turn().await?;
        self.inner.outdated(age, limit).await
    }

    async fn trim_feed(&self, age: Duration) -> Result<u64> {
        let _turn = self.inner.turn().await?;
        self.inner.trim_feed(age).await
    }

    async fn forget(&self, tasks: &[TaskId]) -> Result<u64> {
        self.inner.open()?;
        self.inner.forget(tasks).await
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.inner.changes.subscribe()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
