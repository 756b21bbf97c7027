//! What goes in and comes out.
//!
//! Uploads are the tenant's assets; `subfolder/name`, with ` [temp]` or ` [output]` behind it if they are no inputs, is their
//! name. Files of tasks are in folders of their tasks' own. So `/view` and pre-flight find everything by its name.

mod find;
mod form;
mod mask;
mod picture;
mod query;
mod rooms;
mod upload;
mod view;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};

pub(crate) use query::Pairs;

use crate::state::AppState;

/// Takes a key from the query, too: a browser's picture sends no headers.
pub(super) const VIEW: &str = "/view";

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route(VIEW, get(view::view))
        .route("/upload/image", post(upload::image))
        .route("/upload/mask", post(upload::mask))
        .layer(DefaultBodyLimit::disable())
}
