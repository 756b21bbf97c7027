//! What the parts of a journal source share, and what follows from a delivery.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use comfyui::Client;
use remuda_core::{Lease, TaskId, Timestamp, WorkerId};
use remuda_files::Files;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::desk::{Desk, Received};
use super::folder::Folder;
use super::record::task_of;
use super::{Employer, Job, look, oversee, reports};

/// So many reports are repeated at once.
const REPEATS: usize = 8;

/// What the parts of a journal source share.
#[derive(Debug)]
pub(super) struct Office {
    pub(super) employer: Arc<dyn Employer>,
    pub(super) installation: Uuid,
    /// The number of this process, for workers.
    pub(super) starts: i64,
    pub(super) folder: Folder,
    desk: Mutex<Desk>,
    /// Jobs, slots or claims changed.
    pub(super) moves: watch::Sender<u64>,
    /// Somebody who holds a lease should know something.
    pub(super) news: watch::Sender<u64>,
    /// Reports should be tried now.
    pub(super) urge: watch::Sender<u64>,
    /// Reports that are not heard at once do not all come at once when the employer is back.
    pub(super) repeats: Semaphore,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    /// Who watches over which job.
    overseers: Mutex<HashMap<TaskId, CancellationToken>>,
    pub(super) workers: Vec<(WorkerId, Client)>,
    pub(super) sink: Option<Files>,
}

pub(super) fn bump(counter: &watch::Sender<u64>) {
    counter.send_modify(|count| *count = count.wrapping_add(1));
}

impl Office {
    pub(super) fn new(
        employer: Arc<dyn Employer>,
        folder: Folder,
        desk: Desk,
        workers: Vec<(WorkerId, Client)>,
        sink: Option<Files>,
    ) -> Self {
        Self {
            employer,
            installation: folder.installation(),
            starts: folder.starts(),
            folder,
            desk: Mutex::new(desk),
            moves: watch::Sender::new(0),
            news: watch::Sender::new(0),
            urge: watch::Sender::new(0),
            repeats: Semaphore::new(REPEATS),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            overseers: Mutex::default(),
            workers,
            sink,
        }
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        // Nothing in there can panic half-way, so a poisoned desk is still whole.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes into the journal what the desk knows of a job. A killed process finds it there.
    pub(super) fn save(&self, task: TaskId) -> std::io::Result<()> {
        self.folder.save(task, false, || self.desk().record(task))
    }

    /// … when nothing depends on it.
    pub(super) fn note(&self, task: TaskId) {
        if let Err(error) = self.save(task) {
            tracing::warn!(%task, %error, "the journal cannot be written");
        }
    }

    /// A job was delivered.
    pub(super) fn receive(self: &Arc<Self>, job: Job) {
        let task = task_of(&job);
        let (key, attempt) = (job.key.clone(), job.attempt);
        let received = self.desk().receive(task, job, Instant::now());
        match received {
            Received::New => {
                bump(&self.moves);
                self.oversee(task);
            }
            Received::Look => {
                self.note(task);
                self.oversee(task);
                self.look(task);
            }
            Received::Attached => {
                tracing::info!(key, attempt, %task, "delivered again while it is under way: this delivery gets its end");
                self.note(task);
                self.oversee(task);
                bump(&self.urge);
                bump(&self.moves);
            }
            Received::Answer => {
                tracing::info!(key, attempt, %task, "its end is known already");
                self.note(task);
                self.say(task);
            }
            Received::Stale => {
                tracing::warn!(key, attempt, "an old delivery came after a newer one; it is left alone");
            }
        }
    }

    /// Watches over a job, in place of whoever did before.
    pub(super) fn oversee(self: &Arc<Self>, task: TaskId) {
        let token = self.stop.child_token();
        let before = self.overseers().insert(task, token.clone());
        if let Some(before) = before {
            before.cancel();
        }
        self.tasks.spawn(oversee::run(Arc::clone(self), task, token));
    }

    /// Nobody needs to watch over a job any more, unless it was delivered again meanwhile.
    pub(super) fn look_away(&self, task: TaskId) {
        let mut overseers = self.overseers();
        // Asked while nobody else can be set over it.
        if !self.desk().is_under_way(task)
            && let Some(token) = overseers.remove(&task)
        {
            token.cancel();
        }
    }

    fn overseers(&self) -> MutexGuard<'_, HashMap<TaskId, CancellationToken>> {
        self.overseers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for a job at all workers.
    pub(super) fn look(self: &Arc<Self>, task: TaskId) {
        self.tasks.spawn(look::run(Arc::clone(self), task));
    }

    /// Says how a job ended, unless somebody does. What is returned ends after the first try.
    pub(super) fn say(self: &Arc<Self>, task: TaskId) -> Option<oneshot::Receiver<()>> {
        if !self.desk().begin_to_say(task) {
            return None;
        }
        self.look_away(task);
        let (tried, first) = oneshot::channel();
        self.tasks.spawn(reports::run(Arc::clone(self), task, Some(tried)));
        Some(first)
    }

    /// Says what a process before this one could not: there may be many of those.
    pub(super) fn say_again(self: &Arc<Self>, task: TaskId) {
        if self.desk().begin_to_say(task) {
            self.tasks.spawn(reports::run(Arc::clone(self), task, None));
        }
    }

    /// Calls off what no worker takes. When to look again.
    pub(super) fn strand(self: &Arc<Self>) -> Option<Instant> {
        let (next, unsaid) = {
            let mut desk = self.desk();
            let next = desk.strand(Instant::now());
            (next, desk.unsaid())
        };
        for task in unsaid {
            self.say(task);
        }
        next
    }

    /// A render was let go of: its worker gets nothing else until it has ended.
    pub(super) fn let_go(self: &Arc<Self>, task: TaskId) {
        self.keep_let_go();
        let leases = self.desk().let_go(Timestamp::now());
        for lease in leases.into_iter().filter(|lease| lease.task == task) {
            self.linger(lease);
        }
    }

    /// Waits for the end of a render that was let go of.
    pub(super) fn linger(self: &Arc<Self>, lease: Lease) {
        self.tasks.spawn(look::linger(Arc::clone(self), lease));
    }

    /// Writes down which renders were let go of.
    pub(super) fn keep_let_go(&self) {
        if let Err(error) = self.folder.keep_let_go(|| self.desk().let_go(Timestamp::now())) {
            tracing::warn!(%error, "the journal cannot be written");
        }
    }

    /// Nothing is left of a job.
    pub(super) fn forget(&self, task: TaskId, job: Option<&Job>) {
        self.look_away(task);
        if let Some(job) = job {
            self.employer.gone(job);
        }
        self.note(task);
        bump(&self.moves);
    }
}
