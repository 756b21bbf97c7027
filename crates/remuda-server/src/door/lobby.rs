//! The connections that there are. There is always room for another: whoever is idle longest leaves first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::share::Address;

/// Of a full lobby, this part leaves at once, so that not everybody has to be looked at for every newcomer.
const PART: usize = 16;

/// A request is under way.
const BUSY: u64 = u64::MAX;

/// The connections that there are.
#[derive(Debug)]
pub(crate) struct Lobby {
    most: usize,
    per_address: usize,
    began: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    seats: HashMap<u64, Arc<Seat>>,
    addresses: HashMap<Address, usize>,
}

/// One connection.
#[derive(Debug)]
struct Seat {
    address: Option<Address>,
    /// Since when it waits for a request, in milliseconds.
    idle_since: AtomicU64,
    leave: CancellationToken,
}

impl Inner {
    fn remove(&mut self, id: u64) -> Option<Arc<Seat>> {
        let seat = self.seats.remove(&id)?;
        if let Some(address) = seat.address
            && let Some(count) = self.addresses.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&address);
            }
        }
        Some(seat)
    }

    /// Sends away those that have been idle longest among these. Whether there were any.
    fn dismiss(&mut self, many: usize, these: impl Fn(&Seat) -> bool) -> bool {
        let idle = self.seats.iter().filter(|(_, seat)| these(seat)).filter_map(|(id, seat)| {
            let since = seat.idle_since.load(Ordering::Relaxed);
            (since != BUSY).then_some((since, *id))
        });
        let mut idle: Vec<(u64, u64)> = idle.collect();
        if idle.len() > many {
            idle.select_nth_unstable(many);
            idle.truncate(many);
        }
        for (_, id) in &idle {
            if let Some(seat) = self.remove(*id) {
                seat.leave.cancel();
            }
        }
        !idle.is_empty()
    }

    /// The address with most connections, if it is one with many.
    fn crowd(&self, many: usize) -> Option<Address> {
        let most = self.addresses.iter().max_by_key(|(_, count)| **count);
        most.filter(|(_, count)| **count > many).map(|(address, _)| *address)
    }
}

impl Lobby {
    pub(crate) fn new(most: usize, per_address: usize) -> Arc<Self> {
        let inner = Mutex::default();
        Arc::new(Self { most: most.max(1), per_address: per_address.max(1), began: Instant::now(), inner })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(BUSY - 1)
    }

    /// Lets a connection in. `None`: there is no room, and everybody is busy.
    pub(crate) fn admit(self: &Arc<Self>, address: Option<Address>) -> Option<Seated> {
        let mut inner = self.inner();
        if let Some(address) = address
            && inner.addresses.get(&address).is_some_and(|count| *count >= self.per_address)
            && !inner.dismiss(1 + self.per_address / PART, |seat| seat.address == Some(address))
        {
            return None;
        }
        if inner.seats.len() >= self.most && !self.make_room(&mut inner) {
            return None;
        }
        inner.last += 1;
        let id = inner.last;
        let seat = Arc::new(Seat {
            address,
            idle_since: AtomicU64::new(self.now()),
            leave: CancellationToken::new(),
        });
        inner.seats.insert(id, Arc::clone(&seat));
        if let Some(address) = address {
            *inner.addresses.entry(address).or_default() += 1;
        }
        drop(inner);
        Some(Seated { lobby: Arc::clone(self), id, seat })
    }

    /// Sends some away: the process has no more files to open.
    pub(crate) fn relieve(&self) {
        self.make_room(&mut self.inner());
    }

    fn make_room(&self, inner: &mut Inner) -> bool {
        let many = 1 + self.most / PART;
        // Those of whoever has most of them first.
        let crowd = inner.crowd(many);
        crowd.is_some_and(|crowd| inner.dismiss(many, |seat| seat.address == Some(crowd)))
            || inner.dismiss(many, |_| true)
    }
}

/// A connection that was let in.
#[derive(Debug)]
pub(crate) struct Seated {
    lobby: Arc<Lobby>,
    id: u64,
    seat: Arc<Seat>,
}

impl Seated {
    /// A request is under way until the answer is dropped.
    pub(crate) fn serve(self: &Arc<Self>) -> Serving {
        self.seat.idle_since.store(BUSY, Ordering::Relaxed);
        Serving(Arc::clone(self))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.seat.idle_since.load(Ordering::Relaxed) != BUSY
    }

    /// Others need the room.
    pub(crate) async fn told_to_leave(&self) {
        self.seat.leave.cancelled().await;
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.lobby.inner().remove(self.id);
    }
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Serving(Arc<Seated>);

impl Drop for Serving {
    fn drop(&mut self) {
        let Seated { lobby, seat, .. } = &*self.0;
        seat.idle_since.store(lobby.now(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> Option<Address> {
        Address::of(std::net::IpAddr::from([192, 0, 2, n]))
    }

    #[tokio::test]
    async fn the_idle_of_the_largest_crowd_leave_for_a_newcomer() {
        let lobby = Lobby::new(32, 24);
        let crowd: Vec<Seated> = (0..24).filter_map(|_| lobby.admit(address(1))).collect();
        let others: Vec<Seated> = (2..10).filter_map(|n| lobby.admit(address(n))).collect();
        assert_eq!((crowd.len(), others.len()), (24, 8));
        let new = lobby.admit(address(99)).unwrap();
        let left = |seats: &[Seated]| seats.iter().filter(|seat| seat.seat.leave.is_cancelled()).count();
        assert_eq!((left(&crowd), left(&others)), (3, 0));
        drop((crowd, others, new));
        let inner = lobby.inner();
        assert!(inner.seats.is_empty() && inner.addresses.is_empty());
    }

    #[tokio::test]
    async fn who_is_busy_stays_and_an_address_full_of_busy_ones_gets_no_more() {
        let lobby = Lobby::new(8, 4);
        let busy: Vec<_> = (0..4).map(|_| Arc::new(lobby.admit(address(1)).unwrap())).collect();
        let mut serving: Vec<Serving> = busy.iter().map(Seated::serve).collect();
        assert!(lobby.admit(address(1)).is_none());
        assert!(lobby.admit(address(2)).is_some(), "others are let in");
        serving.pop();
        let again = lobby.admit(address(1));
        assert!(again.is_some() && busy[3].seat.leave.is_cancelled() && !busy[0].seat.leave.is_cancelled());
        assert!(busy[3].is_idle() && !busy[0].is_idle());
        // This machine has no cap of its own.
        let here: Vec<_> = (0..20).filter_map(|_| lobby.admit(None)).collect();
        assert_eq!(here.len(), 20);
        assert!(lobby.inner().seats.len() <= 8);
    }
}
