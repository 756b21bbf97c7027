//! What the parts of a foreign source share, and what follows from a delivery.

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

use super::deliveries::{Deliveries, Received};
use super::journal::Journal;
use super::{Delivery, ForeignQueue, reporter, search, watching};

/// How many reports are repeated at once.
const REPEATS: usize = 8;

/// What the parts of a foreign source share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) queue: Arc<dyn ForeignQueue>,
    pub(super) installation: Uuid,
    /// The number of this process, for workers.
    pub(super) starts: i64,
    pub(super) journal: Journal,
    deliveries: Mutex<Deliveries>,
    /// Tasks, slots or claims changed.
    pub(super) moves: watch::Sender<u64>,
    /// Somebody who holds a lease should know something.
    pub(super) news: watch::Sender<u64>,
    /// Reports should be tried now.
    pub(super) urge: watch::Sender<u64>,
    /// Reports that are not heard at once do not all come at once when the queue is back.
    pub(super) repeats: Semaphore,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    /// Who watches over which task.
    watchers: Mutex<HashMap<TaskId, CancellationToken>>,
    pub(super) workers: Vec<(WorkerId, Client)>,
    pub(super) sink: Option<Files>,
}

pub(super) fn bump(counter: &watch::Sender<u64>) {
    counter.send_modify(|count| *count = count.wrapping_add(1));
}

impl Shared {
    pub(super) fn new(
        queue: Arc<dyn ForeignQueue>,
        journal: Journal,
        deliveries: Deliveries,
        workers: Vec<(WorkerId, Client)>,
        sink: Option<Files>,
    ) -> Self {
        Self {
            queue,
            installation: journal.installation(),
            starts: journal.starts(),
            journal,
            deliveries: Mutex::new(deliveries),
            moves: watch::Sender::new(0),
            news: watch::Sender::new(0),
            urge: watch::Sender::new(0),
            repeats: Semaphore::new(REPEATS),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            watchers: Mutex::default(),
            workers,
            sink,
        }
    }

    pub(super) fn deliveries(&self) -> MutexGuard<'_, Deliveries> {
        // Nothing in there can panic half-way, so what a panic left is still whole.
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes into the journal what is known of a task. A killed process finds it there.
    pub(super) fn save(&self, task: TaskId) -> std::io::Result<()> {
        self.journal.save(task, false, || self.deliveries().record(task))
    }

    /// … when nothing depends on it.
    pub(super) fn note(&self, task: TaskId) {
        if let Err(error) = self.save(task) {
            tracing::warn!(%task, %error, "the journal cannot be written");
        }
    }

    /// A task was delivered.
    pub(super) fn receive(self: &Arc<Self>, delivery: Delivery) {
        let task = delivery.task();
        let (key, attempt) = (delivery.key.clone(), delivery.attempt);
        let received = self.deliveries().receive(task, delivery, Instant::now());
        match received {
            Received::New => {
                bump(&self.moves);
                self.watch_over(task);
            }
            Received::Look => {
                self.note(task);
                self.watch_over(task);
                self.look(task);
            }
            Received::Attached => {
                tracing::info!(key, attempt, %task, "delivered again while it is under way: this delivery gets its end");
                self.note(task);
                self.watch_over(task);
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

    /// Watches over a task, in place of whoever did before.
    pub(super) fn watch_over(self: &Arc<Self>, task: TaskId) {
        let token = self.stop.child_token();
        let before = self.watchers().insert(task, token.clone());
        if let Some(before) = before {
            before.cancel();
        }
        self.tasks.spawn(watching::run(Arc::clone(self), task, token));
    }

    /// Nobody needs to watch over a task any more, unless it was delivered again meanwhile.
    pub(super) fn stop_watching(&self, task: TaskId) {
        let mut watchers = self.watchers();
        // Asked while nobody else can be set over it.
        if !self.deliveries().is_under_way(task)
            && let Some(token) = watchers.remove(&task)
        {
            token.cancel();
        }
    }

    fn watchers(&self) -> MutexGuard<'_, HashMap<TaskId, CancellationToken>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for a task at all workers.
    pub(super) fn look(self: &Arc<Self>, task: TaskId) {
        self.tasks.spawn(search::run(Arc::clone(self), task));
    }

    /// Says how a task ended, unless somebody does. What is returned ends after the first try.
    pub(super) fn say(self: &Arc<Self>, task: TaskId) -> Option<oneshot::Receiver<()>> {
        if !self.deliveries().begin_to_say(task) {
            return None;
        }
        self.stop_watching(task);
        let (tried, first) = oneshot::channel();
        self.tasks.spawn(reporter::run(Arc::clone(self), task, Some(tried)));
        Some(first)
    }

    /// Says what a process before this one could not: there may be many of those.
    pub(super) fn say_again(self: &Arc<Self>, task: TaskId) {
        if self.deliveries().begin_to_say(task) {
            self.tasks.spawn(reporter::run(Arc::clone(self), task, None));
        }
    }

    /// Calls off what no worker takes. When to look again.
    pub(super) fn strand(self: &Arc<Self>) -> Option<Instant> {
        let (next, unsaid) = {
            let mut deliveries = self.deliveries();
            let next = deliveries.strand(Instant::now());
            (next, deliveries.unsaid())
        };
        for task in unsaid {
            self.say(task);
        }
        next
    }

    /// A render was let go of: its worker gets nothing else until it has ended.
    pub(super) fn let_go(self: &Arc<Self>, task: TaskId) {
        self.keep_let_go();
        let leases = self.deliveries().let_go(Timestamp::now());
        for lease in leases.into_iter().filter(|lease| lease.task == task) {
            self.linger(lease);
        }
    }

    /// Waits for the end of a render that was let go of.
    pub(super) fn linger(self: &Arc<Self>, lease: Lease) {
        self.tasks.spawn(search::linger(Arc::clone(self), lease));
    }

    /// Writes down which renders were let go of.
    pub(super) fn keep_let_go(&self) {
        if let Err(error) = self.journal.keep_let_go(|| self.deliveries().let_go(Timestamp::now())) {
            tracing::warn!(%error, "the journal cannot be written");
        }
    }

    /// Nothing is left of a task.
    pub(super) fn forget(&self, task: TaskId, delivery: Option<&Delivery>) {
        self.stop_watching(task);
        if let Some(delivery) = delivery {
            self.queue.gone(delivery);
        }
        self.note(task);
        bump(&self.moves);
    }
}
