//! What happens to tasks, looked up once for everybody in this process who waits for it.
//!
//! ```text
//!   store: pushed changes ──▶ changes ─────────────────▶ whoever follows a task
//!              │ soon           ▲
//!              ▼                │ within a second
//!   store: the feed ──▶ follower┴──▶ tail ──▶ readers of `/api/v1/events`
//! ```
//!
//! Pushed changes are quick, and may be lost: not every database can tell what other processes do. The feed is the truth. One
//! look at it, about once a second while anybody waits for anything, finds what was not pushed. So nobody who waits for a
//! task, or for news of a client's prompts, looks for itself. While the feed is held back by somebody's long transaction, that
//! one look goes to the tasks that are followed (`held`).

mod follower;
mod held;
mod own;
mod tail;
mod told;

pub(crate) use follower::{Feed, Reading};
pub(crate) use tail::Found;
pub(crate) use told::Told;
