//! Who waits for news of which task. One reader of the store's changes serves all of them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remuda_core::TaskId;
use remuda_store::Store;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

type Followed = Mutex<HashMap<TaskId, watch::Sender<u64>>>;

type Grouped = Mutex<HashMap<TaskId, Arc<GroupNews>>>;

/// Everybody who follows a task. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    followed: Arc<Followed>,
    grouped: Arc<Grouped>,
}

impl Changes {
    /// Passes the store's changes on, until `stop`.
    pub(crate) async fn run(self, store: Arc<dyn Store>, stop: CancellationToken) {
        let mut changes = store.changes();
        loop {
            let change = tokio::select! {
                () = stop.cancelled() => return,
                change = changes.recv() => change,
            };
            match change {
                Ok(change) => self.tell(change.task),
                Err(RecvError::Lagged(_)) => self.tell_all(),
                // The store was closed; whoever waits looks for itself.
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// News of this task from now on.
    pub(crate) fn follow(&self, task: TaskId) -> Follow {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let news = followed.entry(task).or_insert_with(|| watch::channel(0).0).subscribe();
        Follow { task, news, followed: self.followed.clone() }
    }

    /// For one who follows many tasks. A task can be in one group only.
    pub(crate) fn group(&self) -> Group {
        Group { news: Arc::default(), grouped: self.grouped.clone() }
    }

    fn tell(&self, task: TaskId) {
        let grouped = self.grouped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = grouped.get(&task) {
            group.tell(task);
        }
        drop(grouped);
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = followed.get(&task) {
            sender.send_modify(|count| *count += 1);
        }
    }

    fn tell_all(&self) {
        let grouped = self.grouped.lock().unwrap_or_else(PoisonError::into_inner);
        grouped.iter().for_each(|(task, group)| group.tell(*task));
        drop(grouped);
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        followed.values().for_each(|sender| sender.send_modify(|count| *count += 1));
    }
}

/// One follower of one task.
#[derive(Debug)]
pub(crate) struct Follow {
    task: TaskId,
    news: watch::Receiver<u64>,
    followed: Arc<Followed>,
}

impl Follow {
    /// Waits for news, or for `patience`: not every database can tell what other processes do.
    pub(crate) async fn changed(&mut self, patience: Duration) {
        drop(tokio::time::timeout(patience, self.news()).await);
    }

    /// Waits for news.
    pub(crate) async fn news(&mut self) {
        // The sender lives as long as its followers.
        if self.news.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        // Our own receiver still counts.
        if followed.get(&self.task).is_some_and(|sender| sender.receiver_count() <= 1) {
            followed.remove(&self.task);
        }
    }
}

#[derive(Debug, Default)]
struct GroupNews {
    changed: Mutex<HashSet<TaskId>>,
    news: Notify,
}

impl GroupNews {
    fn tell(&self, task: TaskId) {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).insert(task);
        self.news.notify_one();
    }
}

/// One follower of many tasks: it costs one entry for each, and news of the same task that were not taken are one.
#[derive(Debug)]
pub(crate) struct Group {
    news: Arc<GroupNews>,
    grouped: Arc<Grouped>,
}

impl Group {
    /// News of this task from now on; the first is that it is to be looked at.
    pub(crate) fn add(&self, task: TaskId) {
        self.grouped.lock().unwrap_or_else(PoisonError::into_inner).insert(task, self.news.clone());
        self.news.tell(task);
    }

    pub(crate) fn remove(&self, task: TaskId) {
        let mut grouped = self.grouped.lock().unwrap_or_else(PoisonError::into_inner);
        if grouped.get(&task).is_some_and(|group| Arc::ptr_eq(group, &self.news)) {
            grouped.remove(&task);
        }
    }

    /// Some of the tasks that changed. For the others there is news at once.
    pub(crate) fn take(&self, most: usize) -> Vec<TaskId> {
        let mut changed = self.news.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let taken: Vec<TaskId> = changed.iter().take(most).copied().collect();
        for task in &taken {
            changed.remove(task);
        }
        if !changed.is_empty() {
            self.news.news.notify_one();
        }
        taken
    }

    /// Waits for news. Can be left and called again.
    pub(crate) async fn news(&self) {
        self.news.news.notified().await;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut grouped = self.grouped.lock().unwrap_or_else(PoisonError::into_inner);
        grouped.retain(|_, group| !Arc::ptr_eq(group, &self.news));
    }
}
