//! One request while it is answered: who it is charged to, and what it was charged.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use http::Method;
use hyper::body::Body as _;

use super::TurnedAway;
use super::answer::Held;
use super::guest::Guest;
use super::room::{Pass, Room};
use crate::error::ApiError;

/// A body that is read whole is held as it came, and once more in the parts it was taken apart into. Counted before it comes: two
/// that never come must leave room for the largest of another tenant.
const READ_WHOLE: u64 = 2;

/// How long a request waits until others of its tenant make room.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Answers below this are not worth counting: the connections bound them.
const SMALL: u64 = 16 << 10;

tokio::task_local! {
    static VISIT: Arc<Visit>;
}

/// One request while it is answered.
#[derive(Debug)]
pub(crate) struct Visit {
    guest: Arc<Guest>,
    memory: Room,
    /// What its body holds in memory.
    body: Mutex<Counted>,
}

/// What a body holds in memory.
#[derive(Debug, Default)]
struct Counted {
    /// One, unless more came while a computation held the first.
    passes: Vec<Arc<Pass>>,
    /// How much of it is for bytes that have not come yet.
    ahead: u64,
}

impl Visit {
    pub(crate) fn new(guest: Arc<Guest>, memory: Room) -> Arc<Self> {
        Arc::new(Self { guest, memory, body: Mutex::default() })
    }

    /// The request that is answered here and now.
    pub(crate) fn current() -> Option<Arc<Self>> {
        VISIT.try_with(Arc::clone).ok()
    }

    /// Who is charged for it.
    pub(crate) fn whose(&self) -> &Arc<Guest> {
        &self.guest
    }

    /// Who asks here and now. Nobody in particular outside of a request.
    pub(crate) fn guest() -> Arc<Guest> {
        VISIT.try_with(|visit| Arc::clone(&visit.guest)).unwrap_or_default()
    }

    /// Answers the request, and counts the answer while it is on its way.
    pub(crate) async fn answer(
        self: Arc<Self>,
        method: Method,
        answer: impl Future<Output = Response>,
    ) -> Response {
        let response = VISIT.scope(Arc::clone(&self), answer).await;
        self.settle();
        let size = response.body().size_hint().exact().filter(|size| *size > SMALL);
        let Some(size) = size else { return response };
        // What only reads can be asked again. Other work is done, and its answer is worth waiting for.
        let reads = matches!(method, Method::GET | Method::HEAD);
        let patience = if reads { Duration::ZERO } else { PATIENCE };
        match self.memory.wait(&self.guest, size, patience).await {
            Ok(pass) => response.map(|body| Held::wrap(body, pass)),
            Err(_) => ApiError::from(TurnedAway::Memory).into_response(),
        }
    }

    fn body(&self) -> MutexGuard<'_, Counted> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes of a body that will be read whole, before they come. Without this, bodies that come at the same time
    /// could each wait for what the others hold.
    pub(crate) async fn expect(&self, bytes: u64) -> Result<(), TurnedAway> {
        let amount = READ_WHOLE.saturating_mul(bytes);
        self.count(amount).await?;
        self.body().ahead += amount;
        Ok(())
    }

    /// Counts bytes of a body that is read whole. Waits if there is no room.
    pub(crate) async fn read(&self, bytes: usize) -> Result<(), TurnedAway> {
        let mut amount = READ_WHOLE.saturating_mul(bytes as u64);
        {
            let mut body = self.body();
            let known = body.ahead.min(amount);
            body.ahead -= known;
            amount -= known;
        }
        if amount == 0 { Ok(()) } else { self.count(amount).await }
    }

    async fn count(&self, amount: u64) -> Result<(), TurnedAway> {
        let pass = self.memory.wait(&self.guest, amount, PATIENCE).await;
        let pass = pass.map_err(|_| TurnedAway::Memory)?;
        let mut body = self.body();
        match body.passes.last_mut().and_then(Arc::get_mut) {
            Some(held) => held.join(pass),
            None => body.passes.push(Arc::new(pass)),
        }
        Ok(())
    }

    /// What its body was charged. For computations on it: they may go on after the request has been answered or given up,
    /// and the body is in memory until they end.
    pub(crate) fn held(&self) -> Vec<Arc<Pass>> {
        self.body().passes.clone()
    }

    /// The body is not in memory any more, but for computations that go on.
    pub(crate) fn settle(&self) {
        let counted = std::mem::take(&mut *self.body());
        drop(counted);
    }
}

#[cfg(test)]
mod tests {
    use remuda_core::Tenant;

    use super::*;

    #[tokio::test]
    async fn bodies_wait_for_those_before_them() {
        let memory = Room::new(256);
        let guest = Arc::new(Guest { tenant: Some(Tenant::new("a").unwrap()), address: None });
        let bodies: Vec<_> = (0..6)
            .map(|_| {
                let visit = Visit::new(guest.clone(), memory.clone());
                tokio::spawn(async move {
                    visit.expect(30).await?;
                    for _ in 0..3 {
                        tokio::task::yield_now().await;
                        visit.read(10).await?;
                    }
                    visit.settle();
                    Ok::<_, TurnedAway>(())
                })
            })
            .collect();
        for body in bodies {
            body.await.unwrap().unwrap();
        }
        assert!(memory.take(&guest, 256).is_ok(), "all of it was given back");
    }

    #[tokio::test]
    async fn a_body_is_counted_while_a_computation_holds_it() {
        let memory = Room::new(256);
        let guest = Arc::new(Guest { tenant: Some(Tenant::new("a").unwrap()), address: None });
        let visit = Visit::new(guest.clone(), memory.clone());
        visit.read(10).await.unwrap();
        let held = visit.held();
        visit.read(20).await.unwrap();
        visit.settle();
        assert!(memory.take(&guest, 256).is_err(), "the first part is still there");
        assert!(visit.held().is_empty());
        drop(held);
        assert!(memory.take(&guest, 256).is_ok());
    }
}
