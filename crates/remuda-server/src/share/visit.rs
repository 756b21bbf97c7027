//! One request while it is answered: who it is charged to, and what it was charged.

use std::sync::{Arc, Mutex, PoisonError};

use axum::response::{IntoResponse as _, Response};
use hyper::body::Body as _;

use super::answer::Held;
use super::guest::Guest;
use super::room::{Pass, Room};
use crate::error::{ApiError, ApiResult};

/// A body that is read whole is held as it came, and once more in the parts it was taken apart into.
const READ_WHOLE: u64 = 2;

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
    body: Mutex<Option<Pass>>,
}

impl Visit {
    pub(crate) fn new(guest: Arc<Guest>, memory: Room) -> Arc<Self> {
        Arc::new(Self { guest, memory, body: Mutex::default() })
    }

    /// The request that is answered here and now.
    pub(crate) fn current() -> Option<Arc<Self>> {
        VISIT.try_with(Arc::clone).ok()
    }

    /// Who asks here and now. Nobody in particular outside of a request.
    pub(crate) fn guest() -> Arc<Guest> {
        VISIT.try_with(|visit| Arc::clone(&visit.guest)).unwrap_or_default()
    }

    /// Answers the request, and counts the answer while it is on its way.
    pub(crate) async fn answer(self: Arc<Self>, answer: impl Future<Output = Response>) -> Response {
        let response = VISIT.scope(Arc::clone(&self), answer).await;
        self.settle();
        let size = response.body().size_hint().exact().filter(|size| *size > SMALL);
        let Some(size) = size else { return response };
        match self.memory.take(&self.guest, size) {
            Ok(pass) => response.map(|body| Held::wrap(body, pass)),
            Err(_) => ApiError::no_memory().into_response(),
        }
    }

    /// Counts bytes of a body that is read whole.
    pub(crate) fn read(&self, bytes: usize) -> ApiResult<()> {
        let amount = READ_WHOLE.saturating_mul(bytes as u64);
        let mut body = self.body.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = match &mut *body {
            Some(pass) => pass.grow(amount),
            none => self.memory.take(&self.guest, amount).map(|pass| *none = Some(pass)),
        };
        counted.map_err(|_| ApiError::no_memory())
    }

    /// The body is not in memory any more.
    pub(crate) fn settle(&self) {
        let pass = self.body.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(pass);
    }
}
