//! What happens, as it happens: `/ws`.
//!
//! ```text
//!   POST /prompt ──▶ desk ──▶ client ◀── narrator: one per client ◀── stories: one per running prompt
//!                               │                    ▲                       ▲
//!   sockets ◀── mailbox ◀───────┘             store: how it ended     frames: what ComfyUI says
//! ```
//!
//! A client is known by its tenant and its client id. It has one mailbox, which its narrator fills and every socket of it
//! reads at its own pace; what it was sent while it had no socket waits there for a while. Frames are best effort, so
//! they only ever tell how things go; how a prompt ended is told from the store, when everybody can read it there.

mod client;
mod connection;
mod desk;
mod ending;
#[cfg(test)]
mod growth;
mod listen;
mod mailbox;
mod narrator;
mod shelf;
mod story;
#[cfg(test)]
pub(super) mod tests;
mod words;

use axum::Router;
use axum::routing::get;

pub(crate) use desk::Desk;

use crate::state::AppState;

/// Takes a key from the query, too: a browser's websocket sends no headers.
pub(super) const SOCKET: &str = "/ws";

pub(super) fn routes() -> Router<AppState> {
    Router::new().route(SOCKET, get(connection::open))
}
