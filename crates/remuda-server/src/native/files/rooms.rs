//! Room for pictures in memory, for one tenant after the other.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use remuda_core::Tenant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many pictures are in memory at once, in the whole process.
const AT_ONCE: u32 = 2;

static ROOMS: LazyLock<Rooms> = LazyLock::new(Rooms::default);

/// Room for a picture, or for two that are put together.
pub(super) type Room = OwnedSemaphorePermit;

/// Each tenant has at most one request in the queue for the rooms, so a long line of one tenant holds up nobody else.
#[derive(Debug)]
struct Rooms {
    /// First come, first served.
    free: Arc<Semaphore>,
    lines: Mutex<HashMap<Tenant, Weak<Semaphore>>>,
}

impl Default for Rooms {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(AT_ONCE as usize)), lines: Mutex::default() }
    }
}

impl Rooms {
    async fn line_up(&self, tenant: &Tenant) -> Option<Turn> {
        let line = {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.retain(|_, line| line.strong_count() > 0);
            lines.get(tenant).and_then(Weak::upgrade).unwrap_or_else(|| {
                let line = Arc::new(Semaphore::new(1));
                lines.insert(tenant.clone(), Arc::downgrade(&line));
                line
            })
        };
        let first = line.acquire_owned().await.ok()?;
        Some(Turn { free: Arc::clone(&self.free), _first: first })
    }
}

/// Waits until it is this request's turn among those of its tenant. Pictures are read during the turn, so that only one
/// for each tenant waits in memory.
pub(super) async fn line_up(tenant: &Tenant) -> Option<Turn> {
    ROOMS.line_up(tenant).await
}

/// The first in the line of its tenant.
#[derive(Debug)]
pub(super) struct Turn {
    free: Arc<Semaphore>,
    _first: OwnedSemaphorePermit,
}

impl Turn {
    /// Waits for room for one picture. The next of the tenant may line up then.
    pub(super) async fn room(self) -> Option<Room> {
        self.free.acquire_owned().await.ok()
    }

    /// Waits for all the room there is: for two pictures that are put together.
    pub(super) async fn whole_room(self) -> Option<Room> {
        self.free.acquire_many_owned(AT_ONCE).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_long_line_of_one_tenant_holds_up_nobody_else() {
        let rooms = Arc::new(Rooms::default());
        let (entered, mut order) = tokio::sync::mpsc::channel(100);
        let enter = |tenant: &'static str| {
            let (rooms, entered) = (Arc::clone(&rooms), entered.clone());
            tokio::spawn(async move {
                let turn = rooms.line_up(&Tenant::new(tenant).unwrap()).await.unwrap();
                let room = if tenant == "c" { turn.whole_room().await } else { turn.room().await };
                entered.send((tenant, room.unwrap())).await.unwrap();
            })
        };
        let mut tasks: Vec<_> = (0..16).map(|_| enter("a")).collect();
        let first = [order.recv().await.unwrap(), order.recv().await.unwrap()];
        tokio::time::sleep(Duration::from_millis(20)).await;
        tasks.extend([enter("b"), enter("c")]);
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(first);
        let mut seen = Vec::new();
        while seen.len() < 16 {
            // Each leaves at once.
            let (tenant, _room) = order.recv().await.unwrap();
            seen.push(tenant);
        }
        assert!(seen[..4].contains(&"b") && seen[..6].contains(&"c"), "{seen:?}");
        for task in tasks {
            task.await.unwrap();
        }
        assert!(rooms.line_up(&Tenant::new("d").unwrap()).await.is_some());
        assert_eq!(rooms.lines.lock().unwrap().len(), 1);
    }
}
