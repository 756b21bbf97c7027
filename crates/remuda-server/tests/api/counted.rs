//! A store that counts how often it is asked for what.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::transition::Ending;
use remuda_core::{
    Attempt, Claim, Dialect, ErrandRecord, ErrandRef, Fence, Harm, Harmed, Installation, KeyId, KeyRecord,
    Lane, LaneId, Lease, LeaseRef, NewTask, OwnerId, Requirements, Sha256, TakenErrand, Task, TaskEvent,
    TaskId, TaskInput, Tenant, Version, Worker, WorkerId, WorkerSpec,
};
use remuda_store::{
    Acquired, AdoptRequest, Asset, AssetUse, BeatReply, BeatRequest, Change, ClaimRequest, Counts,
    Descriptions, Document, DocumentInfo, DocumentStore, EndReply, ErrandStore, FeedEnds, FeedPage,
    FeedPlace, Glance, Hide, HousekeepingStore, KeyStore, ListQuery, LookedUp, Lookup, OriginPage,
    OriginQuery, Page, Position, Registrant, Result, RunnerStore, Store, Submitted, TaskStore, Tidied,
    WorkerStore,
};
use tokio::sync::broadcast;

/// A store that counts how often it is asked for what, and that may keep to itself what it would push.
#[derive(Debug)]
pub(crate) struct Counted {
    inner: Arc<dyn Store>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    /// Who listens to this hears nothing, as with a database that cannot tell what other processes do.
    silent: Option<broadcast::Sender<Change>>,
    /// After which question which task is cancelled, before the answer is told.
    cancels: Mutex<Option<(&'static str, TaskId)>>,
}

impl Counted {
    pub(crate) fn new(inner: Arc<dyn Store>, silent: bool) -> Arc<Self> {
        let silent = silent.then(|| broadcast::channel(1).0);
        Arc::new(Self { inner, counts: Mutex::default(), silent, cancels: Mutex::default() })
    }

    /// The next answer to this is one of before this task was cancelled, and everybody knows by then.
    pub(crate) fn cancel_after(&self, what: &'static str, task: TaskId) {
        *self.cancels.lock().unwrap() = Some((what, task));
    }

    async fn happens(&self, after: &'static str) {
        let due = self.cancels.lock().unwrap().take_if(|(what, _)| *what == after);
        if let Some((_, task)) = due {
            self.inner.cancel(task).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1500)).await;
        }
    }

    /// The store itself, uncounted.
    pub(crate) fn inner(&self) -> Arc<dyn Store> {
        self.inner.clone()
    }

    fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }

    /// How often it was asked for what since this was last called, the keys left out: those are looked at as long as anybody
    /// depends on them.
    pub(crate) fn take(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = std::mem::take(&mut *self.counts.lock().unwrap());
        counts.remove("keys");
        counts
    }
}

macro_rules! counted {
    ($store:ident: $(fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        #[async_trait]
        impl $store for Counted {
            $(async fn $name(&self, $($arg: $type),*) -> $out {
                self.count(stringify!($name));
                let answer = self.inner.$name($($arg),*).await;
                self.happens(stringify!($name)).await;
                answer
            })*
        }
    };
}

#[async_trait]
impl Store for Counted {
    async fn ping(&self) -> Result<()> {
        self.count("ping");
        self.inner.ping().await
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.silent.as_ref().map_or_else(|| self.inner.changes(), broadcast::Sender::subscribe)
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

counted! {
    TaskStore:
    fn submit(new: NewTask) -> Result<Submitted>;
    fn submitted(tenant: &Tenant, key: &str) -> Result<Option<(Sha256, TaskId)>>;
    fn look_up(lookup: Lookup) -> Result<Option<(Task, Option<TaskInput>)>>;
    fn look_up_small(lookup: &Lookup) -> Result<LookedUp>;
    fn task(id: TaskId) -> Result<Option<Task>>;
    fn glance(id: TaskId) -> Result<Option<Glance>>;
    fn task_size(id: TaskId) -> Result<Option<u64>>;
    fn briefly(ids: &[TaskId]) -> Result<Vec<Task>>;
    fn input_size(id: TaskId) -> Result<Option<u64>>;
    fn input(id: TaskId) -> Result<Option<TaskInput>>;
    fn attempts(id: TaskId, limit: u32) -> Result<Vec<Attempt>>;
    fn lease(id: TaskId) -> Result<Option<Lease>>;
    fn events(id: TaskId, after: Version, limit: u32) -> Result<Vec<TaskEvent>>;
    fn feed(tenant: Option<&Tenant>, after: FeedPlace, limit: u32) -> Result<FeedPage>;
    fn feed_ends() -> Result<FeedEnds>;
    fn list(query: &ListQuery) -> Result<Page>;
    fn list_origin(query: &OriginQuery) -> Result<OriginPage>;
    fn unfinished(tenant: &Tenant, dialect: Dialect, client: Option<&str>) -> Result<i64>;
    fn hide(tenant: &Tenant, dialect: Dialect, which: &Hide) -> Result<u64>;
    fn position(id: TaskId) -> Result<Option<Position>>;
    fn counts(tenant: Option<&Tenant>) -> Result<Counts>;
    fn cancel(id: TaskId) -> Result<Task>;
    fn hasten(id: TaskId) -> Result<Task>;
}

counted! {
    RunnerStore:
    fn installation() -> Result<Installation>;
    fn claim(request: ClaimRequest) -> Result<Option<Claim>>;
    fn beat(request: BeatRequest) -> Result<BeatReply>;
    fn end(owner: OwnerId, lease: LeaseRef, ending: Ending) -> Result<EndReply>;
    fn give_back(owner: OwnerId, lease: LeaseRef, learnt: Option<Requirements>) -> Result<EndReply>;
    fn adopt(request: AdoptRequest) -> Result<Vec<Claim>>;
    fn note_harm(task: TaskId, holder: Option<(OwnerId, Fence)>, harm: Harm) -> Result<Harmed>;
    fn leases(worker: &WorkerId) -> Result<Vec<Lease>>;
    fn leases_for(owner: OwnerId, worker: &WorkerId) -> Result<Vec<Lease>>;
}

counted! {
    WorkerStore:
    fn acquire_worker(spec: WorkerSpec, owner: OwnerId) -> Result<Acquired>;
    fn register_worker(spec: WorkerSpec, owner: OwnerId, by: Registrant) -> Result<Acquired>;
    fn inherit(owner: OwnerId, key: KeyId, grace: Duration) -> Result<bool>;
    fn release_worker(owner: OwnerId, id: &WorkerId, fence: Fence) -> Result<()>;
    fn forget_worker(id: &WorkerId) -> Result<()>;
    fn workers() -> Result<Arc<Vec<Worker>>>;
    fn registrants() -> Result<HashMap<WorkerId, KeyId>>;
    fn save_object_info(hash: Sha256, json: &str) -> Result<()>;
    fn bring_object_info(hash: Sha256, json: &str, key: KeyId, bounds: Descriptions) -> Result<()>;
    fn forget_object_info(age: Duration) -> Result<u64>;
    fn object_info(hash: Sha256) -> Result<Option<String>>;
    fn requires(lane: &LaneId) -> Result<Option<Requirements>>;
    fn lanes() -> Result<Vec<Lane>>;
}

counted! {
    KeyStore:
    fn add_key(key: KeyRecord) -> Result<()>;
    fn keys() -> Result<Vec<KeyRecord>>;
    fn revoke_key(id: KeyId) -> Result<KeyRecord>;
}

counted! {
    DocumentStore:
    fn room(tenant: &Tenant) -> Result<u64>;
    fn add_asset(asset: Asset) -> Result<()>;
    fn asset(tenant: &Tenant, sha256: Sha256) -> Result<Option<Asset>>;
    fn asset_named(tenant: &Tenant, filename: &str) -> Result<Option<Asset>>;
    fn assets(tenant: &Tenant, limit: u32) -> Result<Vec<Asset>>;
    fn withdraw_asset(asset: &Asset) -> Result<bool>;
    fn delete_asset(tenant: &Tenant, sha256: Sha256) -> Result<bool>;
    fn asset_use(tenant: &Tenant, sha256: Sha256, after: Option<TaskId>, limit: u32) -> Result<AssetUse>;
    fn unknown_assets(contents: Vec<Sha256>) -> Result<Vec<Sha256>>;
    fn document(tenant: &Tenant, space: &str, path: &str) -> Result<Option<Document>>;
    fn put_document(tenant: &Tenant, space: &str, path: &str, bytes: Vec<u8>, replace: bool) -> Result<Option<DocumentInfo>>;
    fn documents(tenant: &Tenant, space: &str, prefix: &str) -> Result<Vec<DocumentInfo>>;
    fn delete_document(tenant: &Tenant, space: &str, path: &str) -> Result<bool>;
}

counted! {
    ErrandStore:
    fn take_errands(limit: u32, busy: &[Tenant], hold: Duration) -> Result<Vec<TakenErrand>>;
    fn hold_errand(at: ErrandRef, hold: Duration) -> Result<bool>;
    fn finish_errand(at: ErrandRef) -> Result<bool>;
    fn fail_errand(at: ErrandRef, why: &str, delay: Option<Duration>) -> Result<bool>;
    fn errands(task: TaskId) -> Result<Vec<ErrandRecord>>;
}

counted! {
    HousekeepingStore:
    fn lead(what: &str, holder: OwnerId, ttl: Duration) -> Result<Option<Fence>>;
    fn resign(what: &str, holder: OwnerId) -> Result<()>;
    fn tidy() -> Result<Tidied>;
    fn unswept(limit: u32) -> Result<Vec<Task>>;
    fn swept(tasks: &[TaskId]) -> Result<()>;
    fn outdated(age: Duration, limit: u32) -> Result<Vec<TaskId>>;
    fn trim_feed(age: Duration) -> Result<u64>;
    fn forget(tasks: &[TaskId]) -> Result<u64>;
}
