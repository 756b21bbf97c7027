//! Reading the feed: what happened to tasks, in the order in which it was committed.

use std::fmt;
use std::str::FromStr;

use remuda_core::{FeedEntry, Tenant};

/// A place in the feed: after an entry, or before the first one. Places are ordered, but not consecutive.
///
/// ```
/// use remuda_store::FeedPlace;
/// let place: FeedPlace = "1-0-27-3".parse()?;
/// assert_eq!(place.to_string(), "1-0-27-3");
/// assert!("1-0-27".parse::<FeedPlace>().is_err());
/// # Ok::<(), remuda_store::NoFeedPlace>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedPlace {
    /// Rises when what was before can not be followed any more: the database was restored elsewhere, say, or a standby took over.
    pub(crate) epoch: i64,
    /// The transaction, in a database where later ones may be committed first; otherwise 0.
    pub(crate) transaction: i64,
    /// The row.
    pub(crate) row: i64,
    /// How many entries of that row are before this place; after the last of them `u32::MAX`, so that the place behind a row has
    /// one name, whether or not the row is still there to be counted.
    pub(crate) entry: u32,
}

impl FeedPlace {
    /// After all entries of a row.
    pub(crate) fn after_row(epoch: i64, transaction: i64, row: i64) -> Self {
        Self { epoch, transaction, row, entry: u32::MAX }
    }

    /// Whether what follows this place is kept in a feed that begins and ends there. One after its end belongs to another feed.
    pub fn is_between(&self, ends: &FeedEnds) -> bool {
        self.epoch == ends.first.epoch && (ends.first..=ends.last).contains(self)
    }
}

/// A text that names no place in a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not a place in the feed: use the id of an event as it came")]
pub struct NoFeedPlace;

impl fmt::Display for FeedPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}-{}", self.epoch, self.transaction, self.row, self.entry)
    }
}

impl FromStr for FeedPlace {
    type Err = NoFeedPlace;

    fn from_str(text: &str) -> Result<Self, NoFeedPlace> {
        let mut parts = text.splitn(4, '-');
        let mut next = || parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        let mut number = || next().and_then(|part| part.parse::<i64>().ok()).ok_or(NoFeedPlace);
        let (epoch, transaction, row) = (number()?, number()?, number()?);
        let entry = u32::try_from(number()?).map_err(|_| NoFeedPlace)?;
        Ok(Self { epoch, transaction, row, entry })
    }
}

/// One entry with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedItem {
    /// After it.
    pub place: FeedPlace,
    /// Whose task.
    pub tenant: Tenant,
    /// What happened.
    pub entry: FeedEntry,
}

/// Some entries of the feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPage {
    /// In their order.
    pub items: Vec<FeedItem>,
    /// Where to go on.
    pub next: FeedPlace,
    /// Whether there is more already.
    pub more: bool,
    /// Whether something is committed already that is not shown yet, because a transaction that began before it goes on.
    pub held: bool,
}

/// Where the feed begins and ends at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedEnds {
    /// Before the first entry that is kept.
    pub first: FeedPlace,
    /// After the last one.
    pub last: FeedPlace,
}

/// One row of the feed, as a store reads it.
#[derive(Debug)]
pub(crate) struct FeedRow {
    pub(crate) transaction: i64,
    pub(crate) row: i64,
    pub(crate) tenant: Tenant,
    pub(crate) entries: Vec<FeedEntry>,
}

/// Makes a page of rows that begin with the one that `after` is in, if it has more entries. At most `limit` entries: the rest
/// of a row comes with the next page.
pub(crate) fn page(rows: Vec<FeedRow>, after: FeedPlace, limit: usize, more_rows: bool) -> FeedPage {
    let mut items = Vec::new();
    let mut next = after;
    let mut more = more_rows;
    for row in rows {
        let place =
            |entry| FeedPlace { epoch: after.epoch, transaction: row.transaction, row: row.row, entry };
        let begun = (row.transaction, row.row) == (after.transaction, after.row);
        let known = if begun { after.entry as usize } else { 0 };
        let last = row.entries.len();
        for (at, entry) in row.entries.into_iter().enumerate().skip(known) {
            if items.len() >= limit {
                return FeedPage { items, next, more: true, held: false };
            }
            next = place(if at + 1 < last { u32::try_from(at + 1).unwrap_or(u32::MAX) } else { u32::MAX });
            items.push(FeedItem { place: next, tenant: row.tenant.clone(), entry });
        }
    }
    if items.is_empty() {
        more = false;
    }
    FeedPage { items, next, more, held: false }
}

#[cfg(test)]
mod tests {
    use remuda_core::{EventKind, TaskId, Timestamp};

    use super::*;

    fn row(transaction: i64, row: i64, count: i64) -> FeedRow {
        let entry =
            |n| FeedEntry { task: TaskId::new(), n, kind: EventKind::Claimed, at: Timestamp::UNIX_EPOCH };
        let entries = (1..=count).map(entry).collect();
        FeedRow { transaction, row, tenant: Tenant::default_tenant(), entries }
    }

    #[test]
    fn a_page_may_end_within_a_row_and_the_next_goes_on_there() {
        let start = FeedPlace { epoch: 1, transaction: 0, row: 0, entry: 0 };
        let first = page(vec![row(5, 1, 2), row(6, 2, 3)], start, 3, false);
        assert_eq!((first.items.len(), first.more), (3, true));
        assert_eq!(first.next.to_string(), "1-6-2-1");
        let second = page(vec![row(6, 2, 3)], first.next, 3, false);
        assert_eq!((second.items.len(), second.more), (2, false));
        assert_eq!(second.next, FeedPlace::after_row(1, 6, 2));
        let places: Vec<FeedPlace> = first.items.iter().chain(&second.items).map(|item| item.place).collect();
        assert!(places.is_sorted() && places[0] > start);
        let nothing = page(vec![row(6, 2, 3)], second.next, 3, false);
        assert_eq!((nothing.items.len(), nothing.next, nothing.more), (0, second.next, false));
        // As places behind a row were named before.
        let counted: FeedPlace = "1-6-2-3".parse().unwrap();
        assert!(page(vec![row(6, 2, 3)], counted, 3, false).items.is_empty());
    }

    #[test]
    fn who_has_heard_everything_stays_when_it_is_removed() {
        let start = FeedPlace::after_row(1, 0, 0);
        for count in 1..4 {
            let caught_up = page(vec![row(6, 2, count)], start, 3, false).next;
            let removed = FeedPlace::after_row(1, 6, 2);
            assert!(caught_up.is_between(&FeedEnds { first: removed, last: removed }), "{count} entries");
        }
    }

    #[test]
    fn only_places_are_read_as_places() {
        for bad in
            ["", "1", "1-2-3", "1-2-3-4-5", "1-2-3-", "a-2-3-4", "+1-2-3-4", "1-2-3-99999999999", "--1-2"]
        {
            assert_eq!(bad.parse::<FeedPlace>(), Err(NoFeedPlace), "{bad}");
        }
    }
}
