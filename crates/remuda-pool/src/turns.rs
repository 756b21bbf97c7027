//! What the runtime's threads do at this moment, as far as it has a name.
//!
//! A future that is polled holds its thread until it waits for something. If it never does, this tells which one it was. Each
//! thread writes to a place of its own, so that nobody waits for anybody.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Clock;

/// The number of threads that have a place to themselves. Those beyond share places, and may not be named.
const PLACES: usize = 64;

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OURS: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Something that holds a thread of the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// What it is, such as the route of a request.
    pub what: Arc<str>,
    /// For how long of the process's own time.
    pub ran: Duration,
}

/// What the threads do.
#[derive(Debug)]
pub(crate) struct Turns(Box<[Place]>);

/// What one thread does, and since when.
#[derive(Debug, Default)]
struct Place(Mutex<Option<(Arc<str>, Duration)>>);

impl Place {
    fn lock(&self) -> MutexGuard<'_, Option<(Arc<str>, Duration)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self(std::iter::repeat_with(Place::default).take(PLACES).collect())
    }
}

impl Turns {
    /// Does this under its name.
    pub(crate) fn during<T>(&self, clock: &Clock, what: &Arc<str>, poll: impl FnOnce() -> T) -> T {
        let ours = OURS.get().unwrap_or_else(|| {
            let next = NEXT.fetch_add(1, Ordering::Relaxed) % PLACES;
            OURS.set(Some(next));
            next
        });
        let place = &self.0[ours];
        *place.lock() = Some((Arc::clone(what), clock.ran()));
        let _over = Over(place);
        poll()
    }

    /// Everything that holds a thread.
    pub(crate) fn now(&self, clock: &Clock) -> Vec<Turn> {
        let now = clock.ran();
        let shown = |(what, began): &(Arc<str>, Duration)| Turn {
            what: Arc::clone(what),
            ran: now.saturating_sub(*began),
        };
        self.0.iter().filter_map(|place| place.lock().as_ref().map(shown)).collect()
    }
}

/// Forgets what a thread did, also when it panicked.
struct Over<'a>(&'a Place);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let ended = self.0.lock().take();
        drop(ended);
    }
}
