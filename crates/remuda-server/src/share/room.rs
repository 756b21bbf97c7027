//! Something of which there is only so much at once, shared between guests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_core::Tenant;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::guest::Guest;
use super::ledger::{Ledger, Refusal};

/// Whoever waits looks at least this often, whether or not somebody called.
const LOOK: Duration = Duration::from_millis(250);

/// Something of which there is only so much at once. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    /// Those of one tenant take turns: who had one and wants the next goes behind those who wait.
    in_turn: bool,
    waiting: HashMap<Option<Tenant>, Waiting>,
}

/// Those of one tenant who wait.
#[derive(Debug, Default)]
struct Waiting {
    called: Arc<Notify>,
    count: usize,
}

impl Room {
    pub(crate) fn new(whole: u64) -> Self {
        Self::of(Ledger::new(whole), false)
    }

    /// … of which one tenant never holds more than `each`, and whose waiters take turns.
    pub(crate) fn capped(whole: u64, each: u64) -> Self {
        Self::of(Ledger::capped(whole, each), true)
    }

    fn of(ledger: Ledger, in_turn: bool) -> Self {
        Self(Arc::new(Mutex::new(Inner { ledger, in_turn, waiting: HashMap::new() })))
    }

    /// As much of an amount as can be had by one who asks while nobody else has anything. What is larger has the room nearly to
    /// itself, instead of never coming in.
    pub(crate) fn fitting(&self, amount: u64) -> u64 {
        amount.min(self.inner().ledger.whole() / 4 * 3)
    }

    /// Takes this much, now or not at all.
    pub(crate) fn take(&self, guest: &Arc<Guest>, amount: u64) -> Result<Pass, Refusal> {
        self.inner().ledger.take(guest, amount)?;
        Ok(Pass { room: self.clone(), guest: Arc::clone(guest), amount })
    }

    /// Takes so much as soon as it can be had. What is given back goes to the tenant that holds least.
    pub(crate) async fn wait(
        &self,
        guest: &Arc<Guest>,
        amount: u64,
        patience: Duration,
    ) -> Result<Pass, Refusal> {
        let behind = self.inner().is_behind(guest);
        if !behind && let Ok(pass) = self.take(guest, amount) {
            return Ok(pass);
        }
        let deadline = Instant::now() + patience;
        let waiter = Waiter::new(self, guest);
        if behind {
            drop(timeout(patience.min(LOOK), waiter.called.notified()).await);
        }
        loop {
            // After it is known that somebody waits, so that no call is missed.
            let refusal = match self.take(guest, amount) {
                Ok(pass) => return Ok(pass),
                Err(refusal) => refusal,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(refusal);
            }
            drop(timeout(left.min(LOOK), waiter.called.notified()).await);
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Whether a guest has to let others of its tenant go first.
    fn is_behind(&self, guest: &Guest) -> bool {
        self.in_turn && self.waiting.contains_key(&guest.tenant)
    }
}

/// Somebody who waits, until dropped.
struct Waiter<'a> {
    room: &'a Room,
    guest: &'a Guest,
    called: Arc<Notify>,
}

impl<'a> Waiter<'a> {
    fn new(room: &'a Room, guest: &'a Guest) -> Self {
        let mut inner = room.inner();
        let waiting = inner.waiting.entry(guest.tenant.clone()).or_default();
        waiting.count += 1;
        let called = Arc::clone(&waiting.called);
        drop(inner);
        Self { room, guest, called }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut inner = self.room.inner();
        if let Some(waiting) = inner.waiting.get_mut(&self.guest.tenant) {
            waiting.count -= 1;
            if waiting.count == 0 {
                inner.waiting.remove(&self.guest.tenant);
            }
        }
    }
}

/// What somebody took. It is given back on drop.
#[derive(Debug)]
pub(crate) struct Pass {
    room: Room,
    guest: Arc<Guest>,
    amount: u64,
}

impl Pass {
    /// Takes more of the same, if this is less than that much.
    pub(crate) fn cover(&mut self, amount: u64) -> Result<(), Refusal> {
        let more = amount.saturating_sub(self.amount);
        if more > 0 {
            self.room.inner().ledger.take(&self.guest, more)?;
            self.amount += more;
        }
        Ok(())
    }

    /// Adds what the same guest took of the same room.
    pub(crate) fn join(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.room.0, &other.room.0) && self.guest == other.guest);
        self.amount += std::mem::take(&mut other.amount);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inner = self.room.inner();
        let Inner { ledger, waiting, .. } = &mut *inner;
        ledger.give(&self.guest, self.amount);
        let next = waiting.iter().min_by_key(|(tenant, _)| ledger.held_by(tenant.as_ref()));
        if let Some((_, waiting)) = next {
            waiting.called.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(tenant: &str) -> Arc<Guest> {
        Arc::new(Guest { tenant: Some(Tenant::new(tenant).unwrap()), address: None })
    }

    #[tokio::test]
    async fn nobody_goes_twice_before_others_of_the_same_tenant() {
        let room = Room::capped(6, 1);
        let a = guest("a");
        let mut held = room.take(&a, 1).unwrap();
        let long = Duration::from_secs(120);
        let waits = tokio::spawn({
            let (room, a) = (room.clone(), a.clone());
            async move { room.wait(&a, 1, long).await.map(drop) }
        });
        while room.inner().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        // As a long answer does, which takes one turn after the other.
        let mut turns = 0;
        while !waits.is_finished() {
            drop(held);
            held = room.wait(&a, 1, long).await.unwrap();
            turns += 1;
        }
        assert!(turns <= 2, "{turns}");
        waits.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_is_given_back_goes_to_who_holds_least() {
        let room = Room::new(4);
        let (a, b) = (guest("a"), guest("b"));
        let mut held: Vec<Pass> = (0..3).map(|_| room.take(&a, 1).unwrap()).collect();
        let last = room.take(&b, 1).unwrap();
        let long = Duration::from_secs(120);
        let greedy = tokio::spawn({
            let (room, a) = (room.clone(), a.clone());
            async move { room.wait(&a, 1, long).await }
        });
        let modest = tokio::spawn({
            let (room, b) = (room.clone(), b.clone());
            async move { room.wait(&b, 1, long).await }
        });
        while room.inner().waiting.len() < 2 {
            tokio::task::yield_now().await;
        }
        held.pop();
        drop(modest.await.unwrap().unwrap());
        drop((held, last));
        greedy.await.unwrap().unwrap();
        assert!(room.inner().waiting.is_empty());
        assert_eq!(room.wait(&a, 9, Duration::from_millis(1)).await.unwrap_err(), Refusal::Whole);
        assert!(room.inner().waiting.is_empty());
    }
    #[tokio::test]
    async fn what_is_larger_than_the_room_comes_in_when_nobody_else_is_there() {
        let room = Room::new(100);
        assert_eq!((room.fitting(10), room.fitting(1_000)), (10, 75));
        assert!(room.take(&guest("a"), room.fitting(1_000)).is_ok());
    }
}
