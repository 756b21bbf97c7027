//! The words of Remuda as types, and every decision about tasks as plain functions.
//!
#![doc = include_str!("../README.md")]

pub mod acquire;
pub mod admission;
mod attempt;
pub mod errand;
mod event;
mod failure;
mod feed;
pub mod harm;
mod ids;
mod json_text;
mod keys;
mod lease;
mod origin;
mod outputs;
mod priority;
pub mod quota;
mod requires;
pub mod schedule;
pub mod secrets;
mod status;
mod task;
pub mod transition;
mod worker;

pub use attempt::{Attempt, AttemptOutcome};
pub use errand::{Destination, Errand, ErrandRecord, ErrandRef, ErrandState, TakenErrand, Upon};
pub use event::{EventKind, TaskEvent};
pub use failure::{Failure, FailureClass, MOST_DETAILS, Policy, Verdict};
pub use feed::{BadPack, FeedEntry, FeedPack};
pub use harm::{Harm, HarmKind, Harmed};
pub use ids::{AttemptNo, Fence, IdError, Installation, OwnerId, Sha256, TaskId, Tenant, Version, WorkerId};
pub use json_text::JsonText;
pub use keys::{ApiKey, KeyId, KeyRecord, Scope, Scopes};
pub use lease::{Claim, Lease, LeaseRef, Phase, Progress, Standing};
pub use origin::{Dialect, Origin, PromptExtra};
pub use outputs::{OutputFile, TaskResult};
pub use priority::{Priority, PriorityError};
pub use requires::{Capabilities, Lane, LaneId, Requirements};
pub use status::{PendingReason, Status};
pub use task::{Idempotency, NewTask, Placement, Task, TaskInput};
pub use worker::{Health, Registration, Worker, WorkerReport, WorkerSpec, WorkerStatus};

/// A moment, to the microsecond: what PostgreSQL can hold.
pub use jiff::Timestamp;
