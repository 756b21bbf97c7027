//! What can be done with tasks, whoever asks and through whichever door: functions over values and the state that all share.
//!
//! ```text
//!   task API ──────┐
//!   ComfyUI's API ─┼─▶ submit  retry  get  list  outputs  watch  cancel ─▶ pre-flight, store
//!   sync handler ──┘
//! ```
//!
//! An HTTP module translates a request into a call of one of these, and what it returns into an answer. Nothing here knows of
//! requests, statuses or headers. A [`Caller`](crate::access::Caller) says which tenant and key asks; the origin in a
//! [`Draft`] says through which door a task comes in.

mod cancel;
mod error;
mod feed;
mod find;
mod retry;
mod submit;
mod watch;

pub(crate) use cancel::cancel;
pub(crate) use error::{ServiceError, ServiceResult};
pub(crate) use feed::{Begin, FeedReader, FeedWish, follow_feed};
pub(crate) use find::{Details, Wish, details, get, glance, list, output, query, whole};
pub(crate) use retry::{Retried, retry};
pub(crate) use submit::{Draft, Taken, check, repeated, submit, submit_and_wait, submitted_before};
pub(crate) use watch::{for_end, for_news, last_look};
