//! What the workers have, taken together.

mod ask;

use axum::Router;
use remuda_core::OwnerId;

pub(crate) use ask::{Asker, Driven};

use crate::state::AppState;

/// What is remembered of the workers.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// Asks those that this process drives.
    pub(crate) ask: Asker,
}

impl Fleet {
    /// For a process that drives its workers under this name.
    pub(crate) fn new(owner: Option<OwnerId>) -> Self {
        Self { ask: Asker::new(owner) }
    }
}

pub(super) fn routes() -> Router<AppState> {
    Router::new()
}
