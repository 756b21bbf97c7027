//! Work of other people's queues: LittleHorse, a table in a database, a job queue elsewhere.
//!
//! A [`ForeignQueue`] hands out deliveries and wants to hear how each one ended; it knows nothing of workers, leases and
//! prompts. [`ForeignSource`] stands between: towards the runners it is a [`Source`](super::Source), towards the queue a
//! worker with a number of slots. In between, a small journal in the data directory keeps what the next process must know,
//! should this one be killed: where its renders are, and which ends nobody has heard yet.
//!
//! ```text
//!  queue ──next──▶ feeder ──▶ deliveries ──claim, beat, end──▶ runners
//!     ▲ │ watch                  │ ▲
//!     │ └──────▶ watching ───────┘ └── search: where is it already?
//!     └─report── reporter ◀── deliveries        journal: one file for each task
//! ```
//!
//! `deliveries` decides, as values; everything else carries it out. How a queue is added is told step by step in
//! docs/add-a-source.md.

mod attachments;
mod deliveries;
mod delivery;
mod feeder;
mod journal;
mod others;
mod queue;
mod record;
mod reporter;
mod search;
mod service;
mod shared;
mod source;
mod unsent;
mod watching;

pub use attachments::{AttachedFile, SinkFolder};
pub use delivery::{Delivery, DeliveryEnding, NextDelivery, Reported, Withdrawn};
pub use queue::ForeignQueue;
pub use service::{ForeignOptions, ForeignSource};
pub use unsent::UnsentReports;
