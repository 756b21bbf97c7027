//! The routes, one file per subject, and the description of all of them.

mod assets;
mod cancel;
mod download;
mod events;
mod feed;
mod health;
mod index;
mod internal;
mod large;
mod list;
mod metrics;
mod outputs;
mod record;
mod retry;
mod shown;
mod submit;
mod worker_side;
mod workers;

pub(crate) use assets::{mime, timely};
pub(crate) use download::{Sendable, names, send};
pub(crate) use index::described;
pub(crate) use large::LargeInputs;
pub(crate) use worker_side::Live;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dialect::{Dialect, nowhere};
use crate::state::AppState;

/// Remuda's own API.
pub(crate) const DIALECT: Dialect =
    Dialect { routes: api, refusal: None, contests: &[], key_in_query: nowhere, listens: None };

/// Every route that is part of the API.
fn api() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(submit::submit, list::list))
        .routes(routes!(record::get, cancel::cancel))
        .routes(routes!(retry::retry))
        .routes(routes!(outputs::output))
        .routes(routes!(events::events))
        .routes(routes!(feed::feed))
        .routes(routes!(assets::upload))
        .routes(routes!(assets::asset, assets::delete))
        .routes(routes!(workers::list))
        .routes(routes!(workers::metrics))
        .routes(routes!(workers::get))
        .routes(routes!(metrics::queue))
        .routes(routes!(metrics::prometheus))
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(health::health))
        .routes(routes!(index::index))
        .merge(worker_side::api())
}

/// Routes between gateways; not part of the API.
pub(crate) fn internal() -> axum::Router<AppState> {
    axum::Router::new()
        .route("/internal/v1/frames/{task}", axum::routing::get(internal::frames))
        .route("/internal/v1/frames", axum::routing::post(worker_side::passed_on))
}
