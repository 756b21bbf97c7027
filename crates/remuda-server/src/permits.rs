//! How many of the expensive requests may be under way, in all and of each guest.

use std::sync::Arc;
use std::time::Duration;

use remuda_pool::Kept;

use crate::options::Limits;
use crate::share::{Guest, PATIENCE, Pass, Refusal, Room, TurnedAway, Visit};

/// A file that a sidecar delivers waits this long: it is a result that is there already.
const DELIVERY: Duration = Duration::from_secs(600);

/// How many graphs are read from the store at once and not counted yet, because nobody knows how large they are. The store does
/// not read more than a few at once either.
const READS: u64 = 6;

/// How many lists of tasks are read at once …
const LISTS: u64 = 6;

/// … and how many of one tenant: fewer than a store has readers, so that others find one free.
const LISTS_OF_ONE: u64 = 2;

/// How many pages of the feed are read at once, for readers that are behind …
const FEEDS: u64 = 6;

/// … and how many for one tenant.
const FEEDS_OF_ONE: u64 = 2;

/// A room with its names.
#[derive(Debug)]
struct Kind {
    room: Room,
    what: &'static str,
    /// The setting that says how many.
    setting: &'static str,
}

impl Kind {
    fn new(count: usize, what: &'static str, setting: &'static str) -> Self {
        Self { room: Room::new(count as u64), what, setting }
    }

    /// … of which one tenant never has more than `each`.
    fn capped(count: usize, each: usize, what: &'static str, setting: &'static str) -> Self {
        Self { room: Room::capped(count as u64, each as u64), what, setting }
    }

    fn take(&self) -> Result<Pass, TurnedAway> {
        self.room.take(&Visit::guest(), 1).map_err(|refusal| self.refused(refusal))
    }

    async fn wait(&self, patience: Duration) -> Result<Pass, TurnedAway> {
        let waited = self.room.wait(&Visit::guest(), 1, patience).await;
        waited.map_err(|refusal| self.refused(refusal))
    }

    fn refused(&self, refusal: Refusal) -> TurnedAway {
        TurnedAway::from_room(refusal, self.what, self.setting)
    }
}

/// The body of a submission. When it is dropped, its memory is free again.
#[derive(Debug)]
pub(crate) struct Submission {
    pass: Arc<Pass>,
    visit: Option<Arc<Visit>>,
}

impl Submission {
    /// The permit, and what the body was charged: for computations on it, which may go on after this is dropped.
    pub(crate) fn held(&self) -> Kept {
        let body = self.visit.as_ref().map(|visit| visit.held());
        Arc::new((Arc::clone(&self.pass), body))
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if let Some(visit) = &self.visit {
            visit.settle();
        }
    }
}

/// How many of the expensive requests may be under way.
#[derive(Debug)]
pub(crate) struct Permits {
    connections: Kind,
    submissions: Kind,
    uploads: Kind,
    deliveries: Kind,
    downloads: Kind,
    waiting: Kind,
    feed_readers: Kind,
    sync: Kind,
    sidecars: Kind,
    reads: Kind,
    lists: Kind,
    feeds: Room,
}

impl Permits {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            connections: Kind::new(limits.connections, "requests", "server.connections"),
            submissions: Kind::new(limits.submissions, "submissions", "server.submissions"),
            uploads: Kind::new(limits.uploads, "uploads", "server.uploads"),
            deliveries: Kind::new(limits.deliveries, "deliveries", "server.deliveries"),
            downloads: Kind::new(limits.downloads, "downloads", "server.downloads"),
            waiting: Kind::new(limits.waiting, "waiting requests", "server.waiting"),
            feed_readers: Kind::capped(
                limits.waiting,
                limits.feed_readers,
                "readers of all events",
                "server.feed_readers",
            ),
            sync: Kind::new(limits.sync, "synchronous requests", "sync.limit"),
            sidecars: Kind::new(limits.sidecars, "sidecars", "server.sidecars"),
            reads: Kind {
                room: Room::new(READS),
                what: "requests for whole tasks",
                setting: "server.memory",
            },
            lists: Kind {
                room: Room::capped(LISTS, LISTS_OF_ONE),
                what: "lists of tasks",
                setting: "server.memory",
            },
            feeds: Room::capped(FEEDS, FEEDS_OF_ONE),
        }
    }

    /// For every request while it is answered: each has a connection to itself until then.
    pub(crate) fn connection(&self, guest: &Arc<Guest>) -> Result<Pass, TurnedAway> {
        let Kind { room, .. } = &self.connections;
        room.take(guest, 1).map_err(|refusal| self.connections.refused(refusal))
    }

    /// Waits, but not for long: submissions are short, unless their bodies come slowly.
    pub(crate) async fn submission(&self) -> Result<Submission, TurnedAway> {
        let pass = self.submissions.wait(PATIENCE).await?;
        Ok(Submission { pass: Arc::new(pass), visit: Visit::current() })
    }

    pub(crate) fn upload(&self) -> Result<Pass, TurnedAway> {
        self.uploads.take()
    }

    /// Waits: a result that is there already is not turned away.
    pub(crate) async fn delivery(&self) -> Result<Pass, TurnedAway> {
        self.deliveries.wait(DELIVERY).await
    }

    pub(crate) fn download(&self) -> Result<Pass, TurnedAway> {
        self.downloads.take()
    }

    /// For the claims and beats of sidecars, on which leases depend.
    pub(crate) fn sidecar(&self) -> Result<Pass, TurnedAway> {
        self.sidecars.take()
    }

    pub(crate) fn sync(&self) -> Result<Pass, TurnedAway> {
        self.sync.take()
    }

    pub(crate) fn waiting(&self) -> Result<Pass, TurnedAway> {
        self.waiting.take()
    }

    /// For a reader of the feed, beside the permit of whoever waits: each hears of everything.
    pub(crate) fn feed_reader(&self) -> Result<Pass, TurnedAway> {
        self.feed_readers.take()
    }

    /// To be held from before something is read whose size nobody knows until its size is counted.
    pub(crate) async fn read(&self) -> Result<Pass, TurnedAway> {
        self.reads.wait(PATIENCE).await
    }

    /// The same for many tasks.
    pub(crate) async fn list(&self) -> Result<Pass, TurnedAway> {
        self.lists.wait(PATIENCE).await
    }

    /// To be held while a page of the feed is read for a guest that is behind. Waits as long as it takes: whoever waits reads
    /// nothing meanwhile.
    pub(crate) async fn feed(&self, guest: &Arc<Guest>) -> Pass {
        loop {
            if let Ok(pass) = self.feeds.wait(guest, 1, PATIENCE).await {
                return pass;
            }
        }
    }

    /// The room for such reads, for answers that take several.
    pub(crate) fn lists(&self) -> Room {
        self.lists.room.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_submission_is_under_way_while_a_computation_on_it_goes_on() {
        let permits = Permits::new(&Limits { submissions: 1, ..Limits::default() });
        let submission = permits.submission().await.unwrap();
        let held = submission.held();
        drop(submission);
        assert!(permits.submissions.take().is_err(), "nobody waits for it, but it is still there");
        drop(held);
        assert!(permits.submissions.take().is_ok());
    }
}
