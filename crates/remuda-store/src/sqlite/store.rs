//! The handle that callers hold.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::transition::Ending;
use remuda_core::{
    Attempt, Claim, Dialect, Fence, Harm, Harmed, Installation, KeyId, KeyRecord, Lane, LaneId, Lease,
    LeaseRef, NewTask, OwnerId, Requirements, Sha256, Task, TaskEvent, TaskId, TaskInput, Tenant, Version,
    Worker, WorkerId, WorkerSpec,
};
use rusqlite::Connection;
use tokio::sync::{broadcast, mpsc, oneshot};

use super::asking::Whose;
use super::batch::Batch;
use super::beats::Beat;
use super::claims::{Orphans, Waiting};
use super::command::{Command, Job, Submit};
use super::fault::Outcome;
use super::lanes::Shared;
use super::lock::FileLock;
use super::pieces::{self, Texts};
use super::place::Place;
use super::readers::Readers;
use super::state::Settings;
use super::unfinished::Unfinished;
use super::writer::Writer;
use super::{documents, feed, lists, open, origins, reads};
use crate::lines::Lines;
use crate::together::Together;
use crate::turns::{self, Party, Turns};
use crate::{
    Acquired, AdoptRequest, Asset, BeatReply, BeatRequest, Change, ClaimRequest, Counts, Descriptions,
    Document, DocumentInfo, EndReply, Error, FeedEnds, FeedPage, FeedPlace, Hide, ListQuery, Lookup, Options,
    OriginPage, OriginQuery, Page, Position, Registrant, Result, Store, Submitted, Tidied,
};

/// So many commands may wait for the writer; further callers wait to hand theirs in.
const COMMANDS: usize = 4096;

/// So many tasks are hidden in one transaction: others wait for it.
const HIDDEN_AT_ONCE: usize = 500;

/// So many tasks are forgotten in one transaction: each may have much text.
const FORGOTTEN_AT_ONCE: usize = 10;

/// How many long reads of one tenant are under way at once: fewer than there are readers.
const READS_OF_ONE: usize = 1;

/// So many changes a listener may be behind.
const CHANGES: usize = 4096;

/// The queue in one SQLite file, owned by one process.
///
/// ```
/// use remuda_core::{NewTask, OwnerId};
/// use remuda_store::{Options, SqliteStore, Store as _};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("remuda.db");
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let store = SqliteStore::open(&path, Options::new(OwnerId(uuid::Uuid::new_v4()))).await.unwrap();
/// let workflow = serde_json::value::RawValue::from_string("{}".to_owned()).unwrap();
/// let submitted = store.submit(NewTask::new(workflow)).await.unwrap();
/// let task = store.task(submitted.task().id).await.unwrap();
/// assert_eq!(task.as_ref(), Some(submitted.task()));
/// store.close().await;
/// # });
/// ```
#[derive(Debug)]
pub struct SqliteStore {
    installation: Installation,
    pub(super) settings: Arc<Settings>,
    place: Place,
    pub(super) readers: Readers,
    changes: broadcast::Sender<Change>,
    unfinished: Unfinished,
    lanes: Shared,
    next: AtomicU64,
    pub(super) texts: Arc<Texts>,
    /// In the writer's line.
    pub(super) turns: Turns,
    /// For the readers.
    pub(super) lines: Lines,
    workers: Together<Vec<Worker>>,
    // In this order: without the sender the writer ends, and then it can be waited for.
    commands: mpsc::Sender<Command>,
    thread: Thread,
}

/// The writer's thread. Whoever drops the store finds the file free afterwards.
#[derive(Debug)]
struct Thread(Mutex<Option<JoinHandle<()>>>);

impl Thread {
    fn take(&self) -> Option<JoinHandle<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(thread) = self.take() {
            // It ends with the transaction under way; had it panicked, that was said then.
            let _ended = thread.join();
        }
    }
}

impl SqliteStore {
    /// Opens a file, or makes it, and brings its schema up to date. The folder must exist.
    pub async fn open(path: &Path, options: Options) -> Result<Self> {
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || Self::open_blocking(&path, options));
        opened.await.unwrap_or(Err(Error::Closed))
    }

    fn open_blocking(path: &Path, options: Options) -> Result<Self> {
        let lock = FileLock::take(path)?;
        let settings = Arc::new(Settings::new(options));
        let (db, installation) = open::writer(path, settings.secrets())?;
        let place = Place::of(path)?;
        let (changes, _) = broadcast::channel(CHANGES);
        let (commands, received) = mpsc::channel(COMMANDS);
        let unfinished = Unfinished::default();
        let texts = Arc::new(Texts::open(&db, commands.downgrade())?);
        let writer = Writer {
            db,
            place: place.clone(),
            settings: Arc::clone(&settings),
            commands: received,
            changes: changes.clone(),
            orphans: Arc::new(Orphans::new(commands.downgrade())),
            unfinished: unfinished.clone(),
            texts: Arc::clone(&texts),
            lock,
        };
        let writer = writer.prepare()?;
        let lanes = writer.lanes();
        let readers = Readers::open(path)?;
        let thread = std::thread::Builder::new().name("remuda-sqlite".to_owned()).spawn(move || writer.run());
        let thread = thread.map_err(|error| Error::Unavailable {
            message: "could not start the thread that writes".to_owned(),
            source: Some(Box::new(error)),
        })?;
        let thread = Thread(Mutex::new(Some(thread)));
        Ok(Self {
            installation,
            settings,
            place,
            readers,
            changes,
            unfinished,
            lanes,
            next: AtomicU64::new(1),
            texts,
            turns: Turns::default(),
            lines: Lines::new(READS_OF_ONE),
            workers: Together::default(),
            commands,
            thread,
        })
    }

    async fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command).await.map_err(|_| Error::Closed)
    }

    /// Has something done by the writer.
    pub(super) async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Batch<'_>) -> Outcome<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Change(Box::new(Job::new(work, reply)))).await?;
        answer.await.unwrap_or(Err(Error::Closed))
    }

    fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// An answer that may take its time. After `wait` the writer is told that it is over, and answers then.
    async fn patiently<T>(
        &self,
        mut answer: oneshot::Receiver<Result<T>>,
        wait: Duration,
        over: Command,
    ) -> Result<T> {
        if !wait.is_zero() {
            tokio::select! {
                biased;
                answer = &mut answer => return answer.unwrap_or(Err(Error::Closed)),
                () = tokio::time::sleep(wait) => {}
            }
            // Closed: then the answer comes at once as well.
            let _closed = self.send(over).await;
        }
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn installation(&self) -> Result<Installation> {
        Ok(self.installation.clone())
    }

    async fn ping(&self) -> Result<()> {
        let place = self.place.clone();
        self.read(move |db| {
            place.check()?;
            reads::ping(db)
        })
        .await
    }

    async fn submit(&self, mut new: NewTask) -> Result<Submitted> {
        self.settings.secrets().seal_task(&mut new).await?;
        let size = turns::size_of_input(&new.input);
        let (laid, _turn) = match size > pieces::PIECE {
            true => (Some(self.lay_down_input(&mut new).await?), None),
            false => (None, self.turns.take(&new.tenant, size).await?),
        };
        let (reply, answer) = oneshot::channel();
        self.send(Command::Submit(Box::new(Submit { new, laid, _turn, done: None, reply }))).await?;
        answer.await.unwrap_or(Err(Error::Closed))
    }

    async fn submitted(&self, tenant: &Tenant, key: &str) -> Result<Option<(Sha256, TaskId)>> {
        let (tenant, key) = (tenant.clone(), key.to_owned());
        self.look(move |db| reads::submitted(db, &tenant, &key)).await
    }

    async fn look_up(&self, lookup: Lookup) -> Result<Option<(Task, Option<TaskInput>)>> {
        let whose = Whose::Tenant(lookup.tenant.clone());
        self.look_or_read(whose, move |db, most| reads::look_up(db, &lookup, most)).await
    }

    async fn task(&self, id: TaskId) -> Result<Option<Task>> {
        self.look_or_read(Whose::Task(id), move |db, most| reads::task_within(db, id, most)).await
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

    async fn claim(&self, request: ClaimRequest) -> Result<Option<Claim>> {
        let (reply, answer) = oneshot::channel();
        let (id, wait) = (self.next_id(), request.wait);
        self.send(Command::Claim(Waiting::new(id, request, reply))).await?;
        let ticket = self.patiently(answer, wait, Command::ClaimOver(id)).await?;
        match ticket {
            Some(ticket) => ticket.accept(&self.readers, self.settings.secrets()).await.map(Some),
            None => Ok(None),
        }
    }

    async fn beat(&self, request: BeatRequest) -> Result<BeatReply> {
        let (reply, answer) = oneshot::channel();
        let (id, wait) = (self.next_id(), request.wait);
        let beat = Beat { id, request, lost: Vec::new(), lost_workers: Vec::new(), reply };
        self.send(Command::Beat(beat)).await?;
        self.patiently(answer, wait, Command::BeatOver(id)).await
    }

    async fn end(&self, owner: OwnerId, lease: LeaseRef, ending: Ending) -> Result<EndReply> {
        let size = ending.result().map_or(0, turns::size_of_result);
        let ending = Arc::new(ending);
        let (laid, turn) = match size > pieces::PIECE {
            true => (Some(self.lay_down_result(lease.task, &ending).await?), None),
            false if size > turns::SHORT => {
                (None, self.turns.take(self.party(lease.task).await?, size).await?)
            }
            false => (None, None),
        };
        self.write(move |batch| {
            let _in_line = &turn;
            batch.end(owner, lease, (*ending).clone(), laid.as_deref())
        })
        .await
    }

    async fn give_back(
        &self,
        owner: OwnerId,
        lease: LeaseRef,
        learnt: Option<Requirements>,
    ) -> Result<EndReply> {
        self.write(move |batch| batch.give_back(owner, lease, learnt.as_ref())).await
    }

    async fn adopt(&self, request: AdoptRequest) -> Result<Vec<Claim>> {
        let mut adopted = Vec::new();
        for mut claim in self.write(move |batch| batch.adopt(&request)).await? {
            let input = claim.read(&self.readers, self.settings.secrets()).await?;
            adopted.push(claim.with(input));
        }
        Ok(adopted)
    }

    async fn note_harm(&self, task: TaskId, holder: Option<(OwnerId, Fence)>, harm: Harm) -> Result<Harmed> {
        self.write(move |batch| batch.note_harm(task, holder, &harm)).await
    }

    async fn leases(&self, worker: &WorkerId) -> Result<Vec<Lease>> {
        let worker = worker.clone();
        self.read(move |db| reads::leases(db, &worker)).await
    }

    async fn leases_for(&self, owner: OwnerId, worker: &WorkerId) -> Result<Vec<Lease>> {
        let worker = worker.clone();
        self.read(move |db| reads::leases_for(db, owner, &worker)).await
    }

    async fn acquire_worker(&self, spec: WorkerSpec, owner: OwnerId) -> Result<Acquired> {
        self.write(move |batch| batch.acquire_worker(&spec, owner)).await
    }

    async fn register_worker(&self, spec: WorkerSpec, owner: OwnerId, by: Registrant) -> Result<Acquired> {
        self.write(move |batch| batch.register_worker(&spec, owner, &by)).await
    }

    async fn inherit(&self, owner: OwnerId, key: KeyId, grace: Duration) -> Result<bool> {
        // Nearly all owners are new ones, and the writer has better things to do.
        if !self.look(move |db| reads::is_former_owner(db, owner)).await? {
            return Ok(false);
        }
        self.write(move |batch| batch.inherit(owner, key, grace)).await
    }

    async fn release_worker(&self, owner: OwnerId, id: &WorkerId, fence: Fence) -> Result<()> {
        let id = id.clone();
        self.write(move |batch| batch.release_worker(owner, &id, fence)).await
    }

    async fn forget_worker(&self, id: &WorkerId) -> Result<()> {
        let id = id.clone();
        self.write(move |batch| batch.forget_worker(&id)).await
    }

    async fn workers(&self) -> Result<Arc<Vec<Worker>>> {
        self.workers.ask(async || self.read(reads::workers).await).await
    }

    async fn registrants(&self) -> Result<HashMap<WorkerId, KeyId>> {
        self.read(reads::registrants).await
    }

    async fn save_object_info(&self, hash: Sha256, json: &str) -> Result<()> {
        let (json, turn) = (json.to_owned(), self.turns.take(Party::House, json.len()).await?);
        self.write(move |batch| {
            let _in_line = &turn;
            batch.save_object_info(hash, &json)
        })
        .await
    }

    async fn bring_object_info(
        &self,
        hash: Sha256,
        json: &str,
        key: KeyId,
        bounds: Descriptions,
    ) -> Result<()> {
        let (json, turn) = (json.to_owned(), self.turns.take(Party::Key(key), json.len()).await?);
        self.write(move |batch| {
            let _in_line = &turn;
            batch.bring_object_info(hash, &json, key, bounds)
        })
        .await
    }

    async fn forget_object_info(&self, age: Duration) -> Result<u64> {
        self.write(move |batch| batch.forget_object_info(age)).await
    }

    async fn object_info(&self, hash: Sha256) -> Result<Option<String>> {
        self.read(move |db| reads::object_info(db, hash)).await
    }

    async fn requires(&self, lane: &LaneId) -> Result<Option<Requirements>> {
        Ok(self.lanes.requires(lane).map(|requires| (*requires).clone()))
    }

    async fn lanes(&self) -> Result<Vec<Lane>> {
        Ok(self.lanes.all())
    }

    async fn lead(&self, what: &str, holder: OwnerId, ttl: Duration) -> Result<Option<Fence>> {
        let what = what.to_owned();
        self.write(move |batch| batch.lead(&what, holder, ttl)).await
    }

    async fn resign(&self, what: &str, holder: OwnerId) -> Result<()> {
        let what = what.to_owned();
        self.write(move |batch| batch.resign(&what, holder)).await
    }

    async fn add_key(&self, key: KeyRecord) -> Result<()> {
        self.write(move |batch| batch.add_key(&key)).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>> {
        self.read(reads::keys).await
    }

    async fn revoke_key(&self, id: KeyId) -> Result<KeyRecord> {
        self.write(move |batch| batch.revoke_key(id)).await
    }

    async fn add_asset(&self, asset: Asset) -> Result<()> {
        self.write(move |batch| batch.add_asset(&asset)).await
    }

    async fn asset(&self, tenant: &Tenant, sha256: Sha256) -> Result<Option<Asset>> {
        let tenant = tenant.clone();
        self.look(move |db| reads::asset(db, &tenant, sha256)).await
    }

    async fn asset_named(&self, tenant: &Tenant, filename: &str) -> Result<Option<Asset>> {
        let (tenant, filename) = (tenant.clone(), filename.to_owned());
        self.look(move |db| reads::asset_named(db, &tenant, &filename)).await
    }

    async fn assets(&self, tenant: &Tenant, limit: u32) -> Result<Vec<Asset>> {
        let whose = tenant.clone();
        self.read_of(Some(tenant), move |db| reads::assets(db, &whose, limit)).await
    }

    async fn document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<Option<Document>> {
        let (whose, space, path) = (tenant.clone(), space.to_owned(), path.to_owned());
        self.read_of(Some(tenant), move |db| documents::document(db, &whose, &space, &path)).await
    }

    async fn put_document(
        &self,
        tenant: &Tenant,
        space: &str,
        path: &str,
        bytes: Vec<u8>,
        replace: bool,
    ) -> Result<Option<DocumentInfo>> {
        let turn = self.turns.take(tenant, bytes.len()).await?;
        let (tenant, space, path) = (tenant.clone(), space.to_owned(), path.to_owned());
        self.write(move |batch| {
            let _in_line = &turn;
            batch.put_document(&tenant, &space, &path, &bytes, replace)
        })
        .await
    }

    async fn documents(&self, tenant: &Tenant, space: &str, prefix: &str) -> Result<Vec<DocumentInfo>> {
        let (tenant, space, prefix) = (tenant.clone(), space.to_owned(), prefix.to_owned());
        self.read_of(Some(&tenant.clone()), move |db| documents::documents(db, &tenant, &space, &prefix))
            .await
    }

    async fn delete_document(&self, tenant: &Tenant, space: &str, path: &str) -> Result<bool> {
        let (tenant, space, path) = (tenant.clone(), space.to_owned(), path.to_owned());
        self.write(move |batch| batch.delete_document(&tenant, &space, &path)).await
    }

    async fn tidy(&self) -> Result<Tidied> {
        self.write(|batch| batch.tidy()).await
    }

    async fn unswept(&self, limit: u32) -> Result<Vec<Task>> {
        self.read(move |db| reads::unswept(db, limit)).await
    }

    async fn swept(&self, tasks: &[TaskId]) -> Result<()> {
        let tasks = tasks.to_vec();
        self.write(move |batch| batch.swept(&tasks)).await
    }

    async fn outdated(&self, age: Duration, limit: u32) -> Result<Vec<TaskId>> {
        let now = self.settings.now();
        self.read(move |db| reads::outdated(db, now, age, limit)).await
    }

    async fn trim_feed(&self, age: Duration) -> Result<u64> {
        let mut removed = 0;
        loop {
            let (count, more) = self.write(move |batch| batch.trim_feed(age)).await?;
            removed += count;
            if !more {
                return Ok(removed);
            }
        }
    }

    async fn forget(&self, tasks: &[TaskId]) -> Result<u64> {
        let mut forgotten = 0;
        for some in tasks.chunks(FORGOTTEN_AT_ONCE) {
            let some = some.to_vec();
            forgotten += self.write(move |batch| batch.forget(&some)).await?;
        }
        Ok(forgotten)
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    async fn close(&self) {
        // Closed before: then there is nothing to end.
        let _closed = self.send(Command::Close).await;
        self.readers.close().await;
        if let Some(thread) = self.thread.take() {
            let _ended = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}
