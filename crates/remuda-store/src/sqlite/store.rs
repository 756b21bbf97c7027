//! The handle that callers hold.

mod documents;
mod errands;
mod housekeeping;
mod keys;
mod runners;
mod tasks;
mod workers;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use remuda_core::{Installation, Worker};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::batch::Batch;
use super::claims::Orphans;
use super::command::{Command, Job};
use super::fault::Outcome;
use super::lanes::Shared;
use super::lock::FileLock;
use super::pieces::Texts;
use super::place::Place;
use super::readers::Readers;
use super::state::Settings;
use super::unfinished::Unfinished;
use super::writer::Writer;
use super::{open, reads};
use crate::lines::Lines;
use crate::together::Together;
use crate::turns::Turns;
use crate::{Change, Error, Options, Result, Store};

/// How many commands may wait for the writer; further callers wait to hand theirs in.
const COMMANDS: usize = 4096;

/// How many long reads of one tenant are under way at once: fewer than there are readers.
const READS_OF_ONE: usize = 1;

/// How many changes a listener may be behind.
const CHANGES: usize = 4096;

/// The queue in one SQLite file, owned by one process.
///
/// ```
/// use remuda_core::{NewTask, OwnerId};
/// use remuda_store::{Options, SqliteStore, Store as _, TaskStore as _};
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
    async fn ping(&self) -> Result<()> {
        let place = self.place.clone();
        self.read(move |db| {
            place.check()?;
            reads::ping(db)
        })
        .await
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
