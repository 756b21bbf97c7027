//! The newest part of the feed, in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use remuda_store::{FeedItem, FeedPage, FeedPlace};

use super::told::Told;

/// How many entries are kept for readers that are a little behind. Others read the store.
const KEPT: usize = 4096;

/// What there is after a place.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    /// These, in their order, and the place to go on from. None of them, if none is wanted.
    Some(Vec<Arc<Told>>, FeedPlace),
    /// Nothing yet.
    Nothing,
    /// It is not kept here: the store has it. Everything up to the given place, if there is one, can be read there.
    Elsewhere(Option<FeedPlace>),
}

/// The newest part of the feed: everything after one place, up to another.
#[derive(Debug, Default)]
pub(super) struct Tail {
    items: VecDeque<Arc<Told>>,
    /// After which place it begins, and where it ends. `None`: it is not followed.
    span: Option<(FeedPlace, FeedPlace)>,
}

impl Tail {
    /// Begins anew, with nothing, at this place.
    pub(super) fn begin(&mut self, at: FeedPlace) {
        self.items.clear();
        self.span = Some((at, at));
    }

    /// Nobody follows the feed any more.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Adds what follows its end.
    pub(super) fn add(&mut self, page: FeedPage) {
        let Some((from, to)) = &mut self.span else { return };
        *to = page.next;
        self.items.extend(page.items.into_iter().map(|item| Arc::new(Told::from(item))));
        while self.items.len() > KEPT
            && let Some(oldest) = self.items.pop_front()
        {
            *from = oldest.item.place;
        }
    }

    /// What follows a place: the first `most` of those that are wanted.
    pub(super) fn after(&self, place: FeedPlace, most: usize, wanted: impl Fn(&FeedItem) -> bool) -> Found {
        let Some((from, to)) = self.span else { return Found::Elsewhere(None) };
        if place < from {
            return Found::Elsewhere(Some(to));
        }
        if place >= to {
            return Found::Nothing;
        }
        let begin = self.items.partition_point(|told| told.item.place <= place);
        let mut found = Vec::new();
        for told in self.items.range(begin..).filter(|told| wanted(&told.item)) {
            found.push(Arc::clone(told));
            if found.len() >= most {
                let next = told.item.place;
                return Found::Some(found, next);
            }
        }
        Found::Some(found, to)
    }
}

#[cfg(test)]
mod tests {
    use remuda_core::{EventKind, FeedEntry, TaskId, Tenant, Timestamp};

    use super::*;

    fn place(row: usize) -> FeedPlace {
        format!("1-0-{row}-1").parse().unwrap()
    }

    fn item(row: usize) -> FeedItem {
        let tenant = Tenant::new(if row.is_multiple_of(2) { "even" } else { "odd" }).unwrap();
        let at = Timestamp::UNIX_EPOCH;
        let entry = FeedEntry { task: TaskId::new(), n: 1, kind: EventKind::Submitted, at };
        FeedItem { place: place(row), tenant, entry }
    }

    fn page(rows: std::ops::RangeInclusive<usize>) -> FeedPage {
        let next = place(*rows.end());
        FeedPage { items: rows.map(item).collect(), next, more: false, held: false }
    }

    /// The rows after a row.
    fn rows(
        tail: &Tail,
        after: usize,
        most: usize,
        tenant: Option<&str>,
    ) -> Option<(Vec<FeedPlace>, FeedPlace)> {
        let wanted = |item: &FeedItem| tenant.is_none_or(|tenant| item.tenant.as_str() == tenant);
        match tail.after(place(after), most, wanted) {
            Found::Some(items, next) => Some((items.iter().map(|told| told.item.place).collect(), next)),
            Found::Nothing | Found::Elsewhere(_) => None,
        }
    }

    #[test]
    fn it_has_what_follows_its_beginning_and_nothing_twice() {
        let mut tail = Tail::default();
        assert_eq!(tail.after(place(3), 9, |_| true), Found::Elsewhere(None));
        tail.begin(place(3));
        assert_eq!(tail.after(place(3), 9, |_| true), Found::Nothing);
        assert_eq!(tail.after(place(2), 9, |_| true), Found::Elsewhere(Some(place(3))));
        tail.add(page(4..=8));
        assert_eq!(rows(&tail, 3, 2, None), Some((vec![place(4), place(5)], place(5))));
        assert_eq!(rows(&tail, 5, 9, None), Some((vec![place(6), place(7), place(8)], place(8))));
        assert_eq!(rows(&tail, 3, 9, Some("odd")), Some((vec![place(5), place(7)], place(8))));
        // Who is ahead, because the store had more already, waits until this has come as far.
        assert_eq!(tail.after(place(9), 9, |_| true), Found::Nothing);
        tail.add(page(9..=10));
        assert_eq!(rows(&tail, 9, 9, None), Some((vec![place(10)], place(10))));
        assert_eq!(rows(&tail, 8, 9, Some("nobody")), Some((vec![], place(10))), "it moves on all the same");
        tail.end();
        assert_eq!(tail.after(place(10), 9, |_| true), Found::Elsewhere(None));
    }

    #[test]
    fn an_event_is_written_once_however_many_read_it() {
        let mut tail = Tail::default();
        tail.begin(place(0));
        tail.add(page(1..=3));
        let written = std::cell::Cell::new(0);
        let write = |item: &FeedItem| {
            written.set(written.get() + 1);
            bytes::Bytes::from(item.place.to_string())
        };
        let read = || match tail.after(place(0), 9, |_| true) {
            Found::Some(items, _) => items.iter().map(|told| told.text(write).clone()).collect::<Vec<_>>(),
            Found::Nothing | Found::Elsewhere(_) => Vec::new(),
        };
        let first = read();
        for _ in 0..500 {
            let again = read();
            assert!(
                first.iter().zip(&again).all(|(one, two)| one.as_ptr() == two.as_ptr()),
                "the same bytes"
            );
        }
        assert_eq!((first.len(), written.get()), (3, 3));
    }

    #[test]
    fn it_forgets_the_oldest_and_says_so() {
        let mut tail = Tail::default();
        tail.begin(place(0));
        for first in (1..=10_000).step_by(500) {
            tail.add(page(first..=first + 499));
        }
        assert_eq!(tail.items.len(), KEPT);
        let last_gone = 10_000 - KEPT;
        assert_eq!(tail.after(place(last_gone - 1), 9, |_| true), Found::Elsewhere(Some(place(10_000))));
        assert_eq!(rows(&tail, last_gone, 1, None), Some((vec![place(last_gone + 1)], place(last_gone + 1))));
    }
}
