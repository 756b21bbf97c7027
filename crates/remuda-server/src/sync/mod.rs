//! `POST /prompt_sync`: one request, one answer, when the render has ended.
//!
//! A synchronous request is a native task with somebody who waits for it. Its time counts from the receipt and is
//! stored with the task, so that a gateway that dies leaves nothing running for ever; a client that hangs up, or whose time is
//! over, gets its prompt cancelled, unless it said that it should go on.
//!
//! ```text
//!  request ─▶ prompts::submit ─▶ wait ─▶ answer ─▶ stream     JSON, with files in it as base64, piece by piece
//!                                 │         └────▶ download   the bytes of one file, when `accept` says so
//!                                 └─ guard: cancels what nobody waits for
//! ```

mod accept;
mod answer;
mod error;
#[cfg(test)]
mod growth;
mod guard;
mod handler;
mod lookout;
mod request;
mod stream;
mod wait;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use lookout::Lookout;

use crate::dialect::{Dialect, nowhere};
use crate::state::AppState;

/// The handler that waits.
pub(crate) const DIALECT: Dialect = Dialect {
    routes: api,
    refusal: Some(error::refused),
    contests: &[],
    key_in_query: nowhere,
    listens: None,
};

fn api() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(handler::prompt_sync))
}
