//! What is to be done, and what was done.
//!
//! ```text
//!  request ──▶ submit ──▶ store      POST /prompt, and whoever else takes prompts in
//!  lookup                            an id of a client's, and the task behind it
//!  entry                             a task as ComfyUI shows a prompt
//!  queue, history, jobs              the three lists of them
//!  control                           /interrupt, /free
//! ```

mod control;
mod entry;
mod error;
#[cfg(test)]
mod growth;
mod history;
mod jobs;
mod list;
mod lookup;
pub(crate) mod messages;
mod numbers;
mod queue;
mod request;
mod submit;

use axum::Router;
use axum::routing::{get, post};

pub(crate) use error::NativeError;
pub(crate) use list::{fixed, json as streamed, separated};
pub(crate) use lookup::find;
pub(crate) use numbers::Numbers;
pub(crate) use request::read;
pub(crate) use submit::{Accepted, Prompt, submit};

use crate::state::AppState;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/queue", get(queue::show).post(queue::remove))
        .route("/history", get(history::list).post(history::remove))
        .route("/history/{id}", get(history::one))
        .route("/interrupt", post(control::interrupt))
        .route("/free", post(control::free))
        .route("/jobs", get(jobs::list))
        .route("/jobs/cancel", post(jobs::cancel_many))
        .route("/jobs/{id}", get(jobs::one))
        .route("/jobs/{id}/cancel", post(jobs::cancel_one))
        .route("/prompt", get(queue::remaining).post(request::prompt))
}
