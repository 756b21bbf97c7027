//! Who waits for news of which task. One reader of the store's changes serves all of them, and what that one does not hear of
//! is found in the feed (`crate::feed`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remuda_core::{Task, TaskId, Version};
use remuda_store::Change;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, watch};

use crate::state::AppState;

type Followed = Mutex<HashMap<TaskId, watch::Sender<News>>>;

/// What is new of a task.
#[derive(Debug, Clone, Default)]
pub(crate) struct News {
    /// Its version by now. `None`: it is not known what happened, if anything.
    pub(crate) version: Option<Version>,
    /// How it ended, if it did and that was committed in this process. Everything else is to be read.
    pub(crate) ended: Option<Arc<Task>>,
}

impl News {
    /// Whether somebody who knows this version of the task need not look.
    pub(crate) fn is_known(&self, version: Version) -> bool {
        self.version.is_some_and(|now| now <= version)
    }

    /// Older news are of no use beside newer ones, but an end is final. Whether anything is new.
    fn merge(&mut self, other: News) -> bool {
        let same =
            other.ended.is_none() && self.version.zip(other.version).is_some_and(|(one, two)| two <= one);
        self.version = self.version.zip(other.version).map(|(one, two)| one.max(two));
        self.ended = other.ended.or_else(|| self.ended.take());
        !same
    }
}

impl From<Change> for News {
    fn from(change: Change) -> Self {
        Self { version: Some(change.version), ended: change.ended }
    }
}

type Grouped = Mutex<HashMap<TaskId, Arc<GroupNews>>>;

/// Before anything happened.
const NOTHING: News = News { version: Some(0), ended: None };

/// Everybody who follows a task. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    followed: Arc<Followed>,
    grouped: Arc<Grouped>,
}

impl Changes {
    /// Passes the store's changes on, until the server stops.
    pub(crate) async fn run(state: AppState) {
        let mut changes = state.store.changes();
        loop {
            let change = tokio::select! {
                () = state.stop.cancelled() => return,
                change = changes.recv() => change,
            };
            match change {
                Ok(change) => {
                    state.feed.pushed(change.task, change.version);
                    state.changes.tell(change.task, &News::from(change));
                }
                // What was lost is in the feed.
                Err(RecvError::Lagged(_)) => state.feed.hurry(),
                // The store was closed.
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Whether anybody follows anything.
    pub(crate) fn has_followers(&self) -> bool {
        let followed = !self.followed.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        followed || !self.grouped.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// All tasks that anybody follows.
    pub(crate) fn followed(&self) -> Vec<TaskId> {
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tasks: Vec<TaskId> = followed.keys().copied().collect();
        drop(followed);
        tasks.extend(self.grouped.lock().unwrap_or_else(PoisonError::into_inner).keys());
        tasks.sort_unstable();
        tasks.dedup();
        tasks
    }

    /// A task has this version by now.
    pub(crate) fn tell_version(&self, task: TaskId, version: Version) {
        self.tell(task, &News { version: Some(version), ended: None });
    }

    /// News of this task from now on.
    pub(crate) fn follow(&self, task: TaskId) -> Follow {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let news = followed.entry(task).or_insert_with(|| watch::channel(NOTHING).0).subscribe();
        Follow { task, news, followed: self.followed.clone() }
    }

    /// The same for one who has seen the task before: the first news is that it is to be looked at, because what happened in
    /// between is none any more.
    pub(crate) fn follow_late(&self, task: TaskId) -> Follow {
        let follow = self.follow(task);
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = followed.get(&task) {
            sender.send_if_modified(|known| known.merge(News::default()));
        }
        drop(followed);
        follow
    }

    /// For one who follows many tasks. A task can be in one group only.
    pub(crate) fn group(&self) -> Group {
        Group { news: Arc::default(), grouped: self.grouped.clone() }
    }

    /// Followers first: who passes a task from a follower to a group, the group first, misses nothing.
    fn tell(&self, task: TaskId, news: &News) {
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = followed.get(&task) {
            sender.send_if_modified(|known| known.merge(news.clone()));
        }
        drop(followed);
        let grouped = self.grouped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = grouped.get(&task) {
            group.tell(task, news.clone());
        }
    }

    /// Something may have happened to every task: whoever follows one looks at it.
    pub(crate) fn tell_all(&self) {
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        for sender in followed.values() {
            sender.send_if_modified(|known| known.merge(News::default()));
        }
        drop(followed);
        let grouped = self.grouped.lock().unwrap_or_else(PoisonError::into_inner);
        grouped.iter().for_each(|(task, group)| group.tell(*task, News::default()));
    }
}

/// One follower of one task.
#[derive(Debug)]
pub(crate) struct Follow {
    task: TaskId,
    news: watch::Receiver<News>,
    followed: Arc<Followed>,
}

impl Follow {
    /// Waits for news, but not longer than `patience`. Whether there were news.
    pub(crate) async fn changed(&mut self, patience: Duration) -> bool {
        tokio::time::timeout(patience, self.news()).await.is_ok()
    }

    /// What was news could not be looked at: it is news once more.
    pub(crate) fn again(&mut self) {
        self.news.mark_changed();
    }

    /// What happened since the task is followed.
    pub(crate) fn known(&self) -> News {
        self.news.borrow().clone()
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
    changed: Mutex<HashMap<TaskId, News>>,
    news: Notify,
}

impl GroupNews {
    fn tell(&self, task: TaskId, news: News) {
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        match changed.entry(task) {
            Entry::Occupied(mut known) => drop(known.get_mut().merge(news)),
            Entry::Vacant(none) => drop(none.insert(news)),
        }
        drop(changed);
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
        self.add_known(task);
        self.news.tell(task, News::default());
    }

    /// News of this task from now on, for one who knows how it is.
    pub(crate) fn add_known(&self, task: TaskId) {
        self.grouped.lock().unwrap_or_else(PoisonError::into_inner).insert(task, self.news.clone());
    }

    pub(crate) fn remove(&self, task: TaskId) {
        let mut grouped = self.grouped.lock().unwrap_or_else(PoisonError::into_inner);
        if grouped.get(&task).is_some_and(|group| Arc::ptr_eq(group, &self.news)) {
            grouped.remove(&task);
        }
    }

    /// Some of the tasks that changed. For the others there is news at once.
    pub(crate) fn take(&self, most: usize) -> Vec<(TaskId, News)> {
        let mut changed = self.news.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let taken: Vec<TaskId> = changed.keys().take(most).copied().collect();
        let taken: Vec<(TaskId, News)> =
            taken.into_iter().filter_map(|task| changed.remove_entry(&task)).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn who_saw_a_task_before_following_it_looks_again() {
        let (changes, task) = (Changes::default(), TaskId::new());
        // It ends after it was seen, and nobody follows it at that moment.
        changes.tell_version(task, 3);
        let mut early = changes.follow(task);
        assert!(!early.changed(SOON).await, "that is over");
        let mut late = changes.follow_late(task);
        assert!(late.changed(SOON).await && !late.known().is_known(2), "it is to be looked at");
        assert!(!late.changed(SOON).await, "once");
        assert!(early.changed(SOON).await, "another look does no harm");
        drop(early);
        changes.tell_version(task, 4);
        assert!(late.changed(SOON).await);
        drop(late);
        assert!(!changes.has_followers());
    }
}
