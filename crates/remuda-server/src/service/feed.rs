//! Following what happens to tasks.

use std::sync::Arc;
use std::time::Duration;

use remuda_core::{EventKind, TaskId, Tenant};
use remuda_store::{Error, FeedItem, FeedPlace};

use super::{ServiceError, ServiceResult};
use crate::access::Caller;
use crate::feed::{Feed, Found, Reading, Told};
use crate::share::Guest;
use crate::state::AppState;

/// How many events are handed on at once.
const BATCH: u32 = 64;

/// The pause before a store that did not answer is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// With the first event that is kept.
    First,
    /// With the next event that happens.
    Last,
    /// With the one after this place.
    After(FeedPlace),
}

/// Which events are wanted, of those that the caller may see.
#[derive(Debug, Default)]
pub(crate) struct FeedWish {
    /// Only of this tenant's tasks; of all that the caller may see when absent.
    pub(crate) tenant: Option<Tenant>,
    /// Only of this task.
    pub(crate) task: Option<TaskId>,
    /// Only these. None: all.
    pub(crate) kinds: Vec<EventKind>,
}

/// Follows what happens to tasks. [`Error::Gone`] when what follows the place is not kept, or never was.
pub(crate) async fn follow_feed(
    state: &AppState,
    caller: &Caller,
    guest: Arc<Guest>,
    wish: FeedWish,
    begin: Begin,
) -> ServiceResult<FeedReader> {
    let tenant = match wish.tenant {
        None if caller.is_admin() => None,
        None => Some(caller.tenant.clone()),
        Some(tenant) if caller.sees(&tenant) => Some(tenant),
        Some(tenant) => return Err(ServiceError::ForeignTenant(tenant)),
    };
    let reading = Feed::read(state);
    let ends = state.store.feed_ends().await?;
    let place = match begin {
        Begin::First => ends.first,
        Begin::Last => ends.last,
        // A later place is of a feed that is no more: the store was put back to an older state.
        Begin::After(place) if place.is_between(&ends) => place,
        Begin::After(_) => return Err(Error::Gone { first: ends.first }.into()),
    };
    Ok(FeedReader { state: state.clone(), guest, reading, place, wish: FeedWish { tenant, ..wish } })
}

/// One who follows what happens.
#[derive(Debug)]
pub(crate) struct FeedReader {
    state: AppState,
    guest: Arc<Guest>,
    reading: Reading,
    /// Up to here everything was handed on, or is not wanted.
    place: FeedPlace,
    wish: FeedWish,
}

impl FeedReader {
    /// Up to where everything was handed on. A reader that begins here misses nothing.
    pub(crate) fn place(&self) -> FeedPlace {
        self.place
    }

    /// What follows this place was not sent: it comes once more.
    pub(crate) fn back_to(&mut self, place: FeedPlace) {
        self.place = place;
    }

    /// What happened since the last call, in its order, a bounded part of it, and at least one event: waits for it. Can be left
    /// and called again. [`Error::Gone`] when the reader was so slow that it is not kept any more.
    pub(crate) async fn next(&mut self) -> ServiceResult<Vec<Arc<Told>>> {
        loop {
            let wish = &self.wish;
            match self.reading.after(self.place, BATCH as usize, |item| wish.wants(item)) {
                Found::Some(items, next) => {
                    self.place = next;
                    if !items.is_empty() {
                        return Ok(items);
                    }
                }
                Found::Nothing => self.reading.grown().await,
                Found::Elsewhere(end) => {
                    let items = self.read(end).await?;
                    if !items.is_empty() {
                        return Ok(items);
                    }
                }
            }
        }
    }

    /// Reads what is not kept in memory. `end`: what was seen in the store before, by whoever follows it.
    async fn read(&mut self, end: Option<FeedPlace>) -> ServiceResult<Vec<Arc<Told>>> {
        let reading = self.state.permits.feed(&self.guest).await;
        let page = match self.state.store.feed(self.wish.tenant.as_ref(), self.place, BATCH).await {
            Ok(page) => page,
            // It will come back, and then nothing is missed.
            Err(error) if error.is_temporary() => {
                drop(reading);
                tokio::time::sleep(PAUSE).await;
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.into()),
        };
        drop(reading);
        if page.items.is_empty() && !page.more && end.is_none() {
            // There is nothing, and nobody follows it yet.
            self.reading.grown().await;
        }
        // All that there is was read, and so was everything up to that end.
        let end = end.filter(|_| !page.more).unwrap_or(page.next);
        self.place = page.next.max(end);
        let wanted = page.items.into_iter().filter(|item| self.wish.wants(item));
        Ok(wanted.map(|item| Arc::new(Told::from(item))).collect())
    }
}

impl FeedWish {
    fn wants(&self, item: &FeedItem) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| item.tenant == *tenant)
            && self.task.is_none_or(|task| item.entry.task == task)
            && (self.kinds.is_empty() || self.kinds.contains(&item.entry.kind))
    }
}
