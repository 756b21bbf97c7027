//! The part behind the routes: prompt queue, validation, execution, cache, history.
//!
//! ```text
//!  http ── submit, queue, history, … ──▶ Engine ── events ──▶ Hub ──▶ sockets
//!                                          │
//!                                     one worker task: next prompt → validate'd graph → nodes → files
//! ```
//! The engine knows nothing of HTTP: a route hands it parsed JSON and gets an [`Answer`].

use crate::json::Json;

/// What a route answers, before it becomes HTTP.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// A JSON document with its status.
    Json(u16, Json),
    /// Status with an empty body.
    Empty(u16),
    /// The handler raised: aiohttp's 500 page, and the connection is closed.
    Trouble,
}
