//! What clients keep here: settings and small files. They are documents in the store, each tenant's apart.

mod listing;
mod settings;
mod userdata;

use axum::Router;
use axum::routing::{get, post};

use crate::state::AppState;

/// The longest body: 16 MiB.
const LONGEST: u64 = 16 << 20;

/// The longest name of a setting or a file, in bytes.
const LONGEST_NAME: usize = 1024;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/users", get(settings::users))
        .route("/settings", get(settings::all).post(settings::change_all))
        .route("/settings/{id}", get(settings::one).post(settings::change_one))
        .route("/userdata", get(userdata::list))
        .route("/v2/userdata", get(userdata::list_v2))
        .route("/userdata/{file}", get(userdata::get).post(userdata::put).delete(userdata::delete))
        .route("/userdata/{file}/move/{dest}", post(userdata::rename))
}
