//! What happens, as it happens: `/ws`.

mod desk;

use axum::Router;

pub(crate) use desk::Desk;

use crate::state::AppState;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
}
