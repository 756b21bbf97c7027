//! What is to be done, and what was done.
//!
//! ```text
//!  request ──▶ submit ──▶ store      POST /prompt, and whoever else takes prompts in
//!  lookup                            an id of a client's, and the task behind it
//!  entry                             a task as ComfyUI shows a prompt
//!  queue, history, jobs              the three lists of them
//!  control                           /interrupt, /free
//! ```

mod error;
mod lookup;
mod numbers;
mod request;
mod submit;

use axum::Router;
use axum::routing::post;

pub(crate) use error::NativeError;
pub(crate) use lookup::find;
pub(crate) use numbers::Numbers;
pub(crate) use request::read;
pub(crate) use submit::{Accepted, Prompt, submit};

use crate::state::AppState;

pub(super) fn routes() -> Router<AppState> {
    Router::new().route("/prompt", post(request::prompt))
}

/// Routes that have no form without `/api`.
pub(super) fn jobs() -> Router<AppState> {
    Router::new()
}
