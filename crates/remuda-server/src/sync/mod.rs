//! `POST /prompt_sync`: one request, one answer, when the render has ended.

use utoipa_axum::router::OpenApiRouter;

use crate::state::AppState;

/// The routes of the synchronous handler.
pub(crate) fn api() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
}
