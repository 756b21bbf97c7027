//! How many bytes wait in mailboxes: of one tenant, and of everybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bytes may wait in the mailboxes of one tenant.
const OWN: usize = 48 << 20;

/// When this many wait in all of them …
const HOUSE: usize = 128 << 20;

/// … a tenant that has less than this is still not concerned.
const MODEST: usize = 4 << 20;

/// How many bytes wait for the clients of one tenant.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    own: AtomicUsize,
    house: Arc<AtomicUsize>,
}

impl Shelf {
    /// One of several in a house.
    pub(super) fn new(house: Arc<AtomicUsize>) -> Self {
        Self { own: AtomicUsize::new(0), house }
    }

    /// Whether mailboxes must make do with little.
    pub(super) fn is_full(&self) -> bool {
        let own = self.own.load(Ordering::Relaxed);
        own > OWN || (own > MODEST && self.house.load(Ordering::Relaxed) > HOUSE)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.own.fetch_add(bytes, Ordering::Relaxed);
        self.house.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        self.house.fetch_sub(bytes, Ordering::Relaxed);
    }
}
