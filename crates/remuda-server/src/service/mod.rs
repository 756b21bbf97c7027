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

mod bring;
mod cancel;
mod discard;
mod error;
mod feed;
mod find;
mod prompts;
mod retry;
mod submit;
mod watch;

pub(crate) use bring::{Bringing, Brought, UploadRoom, keep, upload_room};
pub(crate) use cancel::cancel;
pub(crate) use discard::delete_asset;
pub(crate) use error::{ServiceError, ServiceResult};
pub(crate) use feed::{Begin, FeedReader, FeedWish, follow_feed};
pub(crate) use find::{Details, Wish, details, glance, list, output, query, whole};
pub(crate) use prompts::{
    hide, input, lease, list_origin, look_up, look_up_briefly, look_up_counted, recall, seen, stop,
    unfinished,
};
pub(crate) use retry::{Retried, retry};
pub(crate) use submit::{Draft, Taken, check, repeated, submit, submit_and_wait, submitted_before};
pub(crate) use watch::{for_end, for_news, last_look};
