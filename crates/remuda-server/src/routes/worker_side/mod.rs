//! `/api/v1/worker/…`: the queue for runners elsewhere. [`remuda_sidecar`] is what is said.
//!
//! A sidecar knows this server's address and a key with the scope `worker`; it has no database and no file store. It is
//! given tasks of every tenant that its worker can run, and reaches nothing but what it holds: the owner of a lease is the
//! key together with the id that the process tells, and every request is checked from the key to the owner, the worker, the
//! lease and the fence. Whatever does not match changes nothing, and the answer is 409 `fenced`. Any server of the
//! installation can answer any request.

mod bounds;
mod deliveries;
mod files;
mod frames;
mod live;
mod offers;
mod owners;
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
