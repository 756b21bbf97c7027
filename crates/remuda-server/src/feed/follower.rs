//! The one look at the feed, for all who wait in this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use rand::RngExt as _;
use remuda_core::{EventKind, TaskId, Version};
use remuda_store::{Error, FeedItem, FeedPage, FeedPlace};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::held::Held;
use super::own::Own;
use super::tail::{Found, Tail};
use crate::state::AppState;

/// How often the feed is looked at while anybody waits, give or take a little, so that processes do not look all at once.
const POLL_MS: std::ops::Range<u64> = 800..1000;

/// The longest pause between two looks, after which what was pushed and never came is not expected any more.
const LONGEST: Duration = Duration::from_secs(1);

/// The shortest pause between two looks. What is pushed comes in heaps.
const SHORTEST: Duration = Duration::from_millis(20);

/// How long the feed is followed on when nobody waits any more: somebody may come again, and beginning anew costs all who
/// wait a look.
const LINGER: Duration = Duration::from_secs(10);

/// How many entries are read at once.
const PAGE: u32 = 500;

/// How many pushed changes are remembered until the feed has them.
const PUSHED: usize = 1024;

/// The feed as this process follows it.
#[derive(Debug)]
pub(crate) struct Feed {
    tail: RwLock<Tail>,
    /// Counts what happens to the tail.
    grown: watch::Sender<u64>,
    /// How many read the tail.
    readers: AtomicUsize,
    /// What was pushed, and was not in the feed when it was last looked at.
    pushed: Mutex<HashMap<TaskId, Version>>,
    own: Mutex<Own>,
    /// It is to be looked at now.
    wake: Notify,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            tail: RwLock::default(),
            grown: watch::channel(0).0,
            readers: AtomicUsize::new(0),
            pushed: Mutex::default(),
            own: Mutex::default(),
            wake: Notify::new(),
        }
    }
}

impl Feed {
    /// Somebody reads from now on.
    pub(crate) fn read(state: &AppState) -> Reading {
        let feed = &state.feed;
        if feed.readers.fetch_add(1, Ordering::Relaxed) == 0 {
            feed.wake.notify_one();
        }
        Reading { state: state.clone(), grown: feed.grown.subscribe() }
    }

    /// Something was committed, here or elsewhere. Whoever reads the feed need not wait for the next look.
    pub(crate) fn pushed(&self, task: TaskId, version: Version) {
        if self.readers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut pushed = self.pushed_changes();
        if pushed.len() < PUSHED || pushed.contains_key(&task) {
            let known = pushed.entry(task).or_insert(version);
            *known = version.max(*known);
        }
        drop(pushed);
        self.wake.notify_one();
    }

    /// Pushed changes were lost: they are looked for now.
    pub(crate) fn hurry(&self) {
        self.wake.notify_one();
    }

    /// This process takes a task in: nobody here has to find out that it is there.
    pub(crate) fn takes_in(&self, task: TaskId) {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).add(task);
    }

    /// Looks, until the server stops.
    pub(crate) async fn run(state: AppState) {
        let mut follower = Follower {
            place: None,
            needed: Instant::now(),
            failing: false,
            held: Held::default(),
            state: state.clone(),
        };
        let mut pace = Pace { pause: LONGEST, late: SHORTEST, left: 0 };
        loop {
            let looked = Instant::now();
            tokio::select! {
                () = state.stop.cancelled() => return,
                () = state.feed.wait(looked, pace.pause) => {}
            }
            let before = state.feed.pushed_changes().len();
            follower.look().await;
            let mut pushed = state.feed.pushed_changes();
            pace = pace.next(before, pushed.len());
            if pace.left == 0 {
                pushed.clear();
            }
        }
    }

    /// Waits until it is time to look again, or somebody says that it is.
    async fn wait(&self, looked: Instant, pause: Duration) {
        tokio::time::sleep_until(looked + SHORTEST).await;
        tokio::select! {
            () = tokio::time::sleep_until(looked + pause) => {}
            () = self.wake.notified() => {}
        }
    }

    /// What follows a place, if that is kept here.
    fn after(&self, place: FeedPlace, most: usize, wanted: impl Fn(&FeedItem) -> bool) -> Found {
        self.tail.read().unwrap_or_else(PoisonError::into_inner).after(place, most, wanted)
    }

    fn change_tail(&self, change: impl FnOnce(&mut Tail)) {
        change(&mut self.tail.write().unwrap_or_else(PoisonError::into_inner));
        self.grown.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn pushed_changes(&self) -> MutexGuard<'_, HashMap<TaskId, Version>> {
        self.pushed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_own(&self, task: TaskId) -> bool {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).take(task)
    }
}

/// Somebody who reads the tail, until dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    state: AppState,
    grown: watch::Receiver<u64>,
}

impl Reading {
    /// What follows a place: the first `most` of those that are wanted. What comes after this look is waited for with
    /// [`Reading::grown`].
    pub(crate) fn after(
        &mut self,
        place: FeedPlace,
        most: usize,
        wanted: impl Fn(&FeedItem) -> bool,
    ) -> Found {
        self.grown.mark_unchanged();
        self.state.feed.after(place, most, wanted)
    }

    /// Waits until there may be more.
    pub(crate) async fn grown(&mut self) {
        if self.grown.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.state.feed.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// When the feed is looked at next. What was pushed may be behind a transaction that began before it and has not ended: then it
/// is in the feed a little later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    /// The pause before the next look.
    pause: Duration,
    /// The pause after that, if nothing comes.
    late: Duration,
    /// How many pushed changes were not seen in the last look.
    left: usize,
}

impl Pace {
    /// After a look: how many pushed changes there were before it, and how many there are now.
    fn next(self, before: usize, after: usize) -> Self {
        let anew = before > self.left || after < before;
        let late = if anew { SHORTEST } else { self.late };
        if after == 0 || late >= LONGEST {
            let pause = Duration::from_millis(rand::rng().random_range(POLL_MS));
            return Self { pause, late: SHORTEST, left: 0 };
        }
        Self { pause: late, late: late * 2, left: after }
    }
}

/// Who looks.
struct Follower {
    state: AppState,
    /// Up to which place everybody was told. `None`: nobody waits for anything.
    place: Option<FeedPlace>,
    /// When somebody last waited.
    needed: Instant,
    /// The feed could not be read the last time.
    failing: bool,
    /// Whether it is held back, and since when.
    held: Held,
}

impl Follower {
    async fn look(&mut self) {
        let state = self.state.clone();
        let reads = state.feed.readers.load(Ordering::Relaxed) > 0;
        let needed = reads || state.changes.has_followers() || state.desk.has_clients();
        if needed {
            self.needed = Instant::now();
        } else if self.place.is_some() && self.needed.elapsed() >= LINGER {
            self.place = None;
            self.held.end(&state);
            state.feed.change_tail(Tail::end);
        }
        match self.place {
            Some(begun) => {
                let mut place = begun;
                while let Some(page) = self.page(place).await {
                    let more = page.more && page.next > place;
                    let held = page.held;
                    place = page.next;
                    self.place = Some(place);
                    self.tell(page);
                    if !more || state.stop.is_cancelled() {
                        self.held.after(&state, held, place > begun).await;
                        return;
                    }
                }
            }
            None if needed => self.begin().await,
            None => {}
        }
    }

    /// Follows from now on. What happened before that, whoever waits looks up itself.
    async fn begin(&mut self) {
        match self.state.store.feed_ends().await {
            Ok(ends) => {
                self.failing = false;
                self.place = Some(ends.last);
                self.state.feed.change_tail(|tail| tail.begin(ends.last));
                // After the place is known: what is committed from here on is found in the feed.
                self.state.changes.tell_all();
                self.state.desk.doubt_all();
            }
            Err(error) => self.fail(&error),
        }
    }

    async fn page(&mut self, place: FeedPlace) -> Option<FeedPage> {
        match self.state.store.feed(None, place, PAGE).await {
            Ok(page) => {
                self.failing = false;
                Some(page)
            }
            // Nothing is lost: it is read when the store is back.
            Err(error) if error.is_temporary() || matches!(error, Error::Closed) => {
                self.fail(&error);
                None
            }
            // What was between is not known: everybody looks once.
            Err(error) => {
                self.fail(&error);
                self.place = None;
                self.begin().await;
                None
            }
        }
    }

    fn fail(&mut self, error: &Error) {
        // Once, not every second of an outage.
        if !std::mem::replace(&mut self.failing, true) {
            tracing::debug!(%error, "the feed could not be read; trying on");
        }
    }

    fn tell(&self, page: FeedPage) {
        if page.items.is_empty() {
            return;
        }
        let (feed, changes, desk) = (&self.state.feed, &self.state.changes, &self.state.desk);
        let mut pushed = feed.pushed_changes();
        for FeedItem { tenant, entry, .. } in &page.items {
            if pushed.get(&entry.task).is_some_and(|version| *version <= entry.n) {
                pushed.remove(&entry.task);
            }
            changes.tell_version(entry.task, entry.n);
            if entry.kind == EventKind::Submitted && !feed.is_own(entry.task) {
                desk.came_in_elsewhere(tenant, entry.task);
            }
        }
        drop(pushed);
        feed.change_tail(|tail| match feed.readers.load(Ordering::Relaxed) {
            // Who comes now begins here.
            0 => tail.begin(page.next),
            _ => tail.add(page),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pushed_is_looked_for_soon_then_later_and_then_not_any_more() {
        let quiet = Pace { pause: LONGEST, late: SHORTEST, left: 0 };
        let usual = |pace: Pace| POLL_MS.contains(&u64::try_from(pace.pause.as_millis()).unwrap());
        assert!(usual(quiet.next(0, 0)) && usual(quiet.next(3, 0)), "all of it was there");
        let mut pace = quiet;
        let mut pauses = Vec::new();
        loop {
            pace = pace.next(1, 1);
            if pace.left == 0 {
                break;
            }
            pauses.push(pace.pause.as_millis());
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640]);
        assert!(usual(pace));
        // Whatever is new, or was seen, makes it quick again.
        let slow = quiet.next(1, 1).next(1, 1).next(1, 1);
        assert_eq!(slow.pause, 4 * SHORTEST);
        assert_eq!((slow.next(2, 2).pause, slow.next(2, 1).pause), (SHORTEST, SHORTEST));
    }
}
