//! Following a prompt from submission to its end.
//!
//! ```text
//!  websocket ──▶ Connection ─┐
//!                            ├─▶ Session (one task) ──▶ Tracker (pure) ──▶ mailbox ──▶ Watch (a stream)
//!  queue, jobs, history ─────┘         ▲                   │
//!                                      └── looks, surveys ◀┘
//! ```
//! Speed is the websocket, truth is the history: frames are passed on as they come, and the end is decided only by
//! what the server shows when asked. Nothing waits for a frame alone, so no mute, dropped or half-open socket can hang
//! a watch; [`SessionOptions`] states the bounds.

mod event;
mod mailbox;
mod options;
mod outcome;
mod questions;
mod service;
mod session;
mod stream;
mod tracker;

pub use event::{Event, NodeState, Raw};
pub use options::{SessionOptions, WatchOptions};
pub use outcome::{ExecutionFailure, GaveUp, Interruption, Lost, Outcome, Success};
pub use session::Session;
pub use stream::Watch;
