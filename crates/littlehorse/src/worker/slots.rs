//! How many tasks may run at once, for one worker or for several together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// A number of places for tasks. Clones share them: give the same to several [`Worker`](crate::Worker)s, and together they
/// run no more tasks than that, whatever their TaskDefs.
#[derive(Debug, Clone)]
pub struct Slots {
    places: Arc<Semaphore>,
    changed: watch::Sender<()>,
}

impl Slots {
    /// This many places, at least one.
    pub fn new(places: usize) -> Self {
        let places = places.clamp(1, Semaphore::MAX_PERMITS);
        Self { places: Arc::new(Semaphore::new(places)), changed: watch::Sender::new(()) }
    }

    /// The places that are free now.
    pub fn free(&self) -> usize {
        self.places.available_permits()
    }

    /// Takes a place, if one is free.
    pub(super) fn try_enter(&self) -> Option<Place> {
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(self.place(permit))
    }

    /// Takes a place; waits in line for it.
    pub(super) async fn enter(&self) -> Option<Place> {
        let permit = Arc::clone(&self.places).acquire_owned().await.ok()?;
        Some(self.place(permit))
    }

    /// Sees every change of the number of free places from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn place(&self, permit: OwnedSemaphorePermit) -> Place {
        self.changed.send_replace(());
        Place { permit: Some(permit), changed: self.changed.clone() }
    }
}

/// A place that is taken, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    permit: Option<OwnedSemaphorePermit>,
    changed: watch::Sender<()>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.permit = None;
        self.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_shared_and_changes_are_seen() {
        let slots = Slots::new(1);
        let other = slots.clone();
        let mut changes = other.changes();
        let place = slots.try_enter().unwrap();
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(other.try_enter().is_none());
        drop(place);
        assert!(changes.has_changed().unwrap());
        assert_eq!(other.free(), 1);
    }

    #[test]
    fn there_is_always_a_place() {
        assert_eq!(Slots::new(0).free(), 1);
    }
}
