//! What the workers have, taken together.
//!
//! Two sources: what every worker last said of its nodes, which the store keeps and which is there also while a worker is
//! away, and the workers that this process drives, which can be asked.
//!
//! ```text
//!  store ──▶ known ──▶ merge      descriptions of nodes as one            object_info, models, stats
//!  workers ──▶ ask, pass          what only they know, and their files    models, extras
//! ```

mod choices;
mod extras;
#[cfg(test)]
mod growth;
mod internal;
mod known;
mod merge;
mod models;
mod object_info;
mod pass;
mod stats;

use axum::Router;
use axum::routing::{get, patch};
use remuda_core::OwnerId;
use remuda_pool::Pool;
use remuda_runner::ask::{Addresses, Asker};

pub(crate) use stats::feature_flags;

use crate::state::AppState;

/// What is remembered of the workers.
#[derive(Debug)]
pub(crate) struct Catalogue {
    /// Asks those that this process drives.
    pub(crate) ask: Asker,
    known: known::Known,
    texts: extras::Texts,
}

impl Catalogue {
    /// For a process that drives its workers under this name, at these addresses.
    pub(crate) fn new(owner: Option<OwnerId>, addresses: Addresses, pool: Pool) -> Self {
        Self {
            ask: Asker::new(owner, addresses, pool),
            known: known::Known::default(),
            texts: extras::Texts::default(),
        }
    }
}

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/object_info", get(object_info::all))
        .route("/object_info/{class}", get(object_info::one))
        .route("/models", get(models::list))
        .route("/models/{folder}", get(models::of_folder))
        .route("/embeddings", get(models::embeddings))
        .route("/experiment/models", get(models::folder_list))
        .route("/experiment/models/{folder}", get(models::files))
        .route("/experiment/models/preview/{folder}/{index}/{*file}", get(models::preview))
        .route("/view_metadata/{folder}", get(models::metadata))
        .route("/system_stats", get(stats::system_stats))
        .route("/features", get(stats::features))
        .route("/extensions", get(extras::extensions))
        .route("/extensions/{*path}", get(extras::extension))
        .route("/i18n", get(extras::translations))
        .route("/workflow_templates", get(extras::templates))
        .route("/workflow_templates/{module}/{*path}", get(extras::template))
        .route("/global_subgraphs", get(extras::subgraphs))
        .route("/global_subgraphs/{id}", get(extras::subgraph))
        .route("/node_replacements", get(extras::replacements))
}

/// Routes without a second form below `/api`.
pub(super) fn bare() -> Router<AppState> {
    Router::new()
        .route("/templates/{*path}", get(extras::core_template))
        .route("/internal/folder_paths", get(internal::folder_paths))
        .route("/internal/files/{type}", get(internal::files))
        .route("/internal/logs", get(internal::logs))
        .route("/internal/logs/raw", get(internal::raw_logs))
        .route("/internal/logs/subscribe", patch(internal::subscribe_logs))
}
