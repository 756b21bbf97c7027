//! `/api/v1/worker/…`: the queue for runners elsewhere. [`remuda_runner::wire`] is what is said.
//!
//! A sidecar knows this server's address and a key with the scope `worker`; it has no database and no file store. Such a
//! key may act for any owner, as a process with the database's password could: give one to machines that you trust with
//! every tenant's tasks. What keeps sidecars apart is not the key but the fence, which every write carries; with an old one
//! nothing changes, and the answer is 409 `fenced`. Any server of the installation can answer any request.

mod files;
mod frames;
mod live;
mod queue;
mod sidecar;

pub(crate) use frames::passed_on;
pub(crate) use live::Live;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::AppState;

/// The routes for sidecars.
pub(super) fn api() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(queue::installation))
        .routes(routes!(queue::acquire))
        .routes(routes!(queue::release))
        .routes(routes!(queue::object_info))
        .routes(routes!(queue::claim))
        .routes(routes!(queue::adopt))
        .routes(routes!(queue::leases))
        .routes(routes!(queue::beat))
        .routes(routes!(queue::end))
        .routes(routes!(queue::give_back))
        .routes(routes!(queue::harm))
        .routes(routes!(files::input))
        .routes(routes!(files::output))
        .routes(routes!(files::discard))
        .routes(routes!(frames::frames))
}
