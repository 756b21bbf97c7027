//! What is to be done, and what was done.

use axum::Router;

use crate::state::AppState;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
}

/// Routes that have no form without `/api`.
pub(super) fn jobs() -> Router<AppState> {
    Router::new()
}
