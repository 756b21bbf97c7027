//! A test double of a LittleHorse server, for tests and measurements only.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use littlehorse_double::{Double, NewRun, Options};
//!
//! let double = Double::start(Options::default()).await?;
//! let run = double.schedule(NewRun::json("wfrun-1", r#"{"3": {}}"#));
//! // Here a worker connects to 127.0.0.1 and `double.port(0)`.
//! let ended = run.ended().await;
//! assert_eq!(ended.attempts.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! What it does is what the real server was seen to do, as far as a task worker can tell. Tests keep it honest in three ways:
//! messages of recordings are reproduced byte for byte, the official Python SDK works with it exactly as it was recorded to
//! work, and it answers the same questions in the same words as a real server.

mod access;
mod answers;
mod clock;
mod cluster;
mod double;
mod fault;
mod gson;
mod host;
mod journal;
mod message;
mod options;
mod pings;
pub mod proto;
pub mod recording;
mod run;
mod service;
mod tls;

pub use access::{OAuth, TokenRequest, TokenServer};
pub use double::Double;
pub use fault::{Fault, no_leader, quota, too_large};
pub use gson::rewritten;
pub use journal::{Event, Journal, Method, What};
pub use message::Message;
pub use options::{Backoff, NewRun, Options, Oversize, json_task};
pub use run::{Run, Seen};
pub use tls::Tls;
