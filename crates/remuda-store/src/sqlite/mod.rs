//! The queue in one SQLite file, for one process.
//!
//! ```text
//!  callers ──commands──▶ writer (one thread, the only connection that writes)      file.db, file.db-wal
//!     ▲                    takes all that waits, one transaction, one sync ──────▶   ▲
//!     └──────answers───────┘ after the commit                                        │
//!  callers ──queries──▶ readers (a few connections, mostly on blocking threads) ──────┘
//! ```
//!
//! The sync at the end of a transaction costs more than everything in it, so it is shared: 64 callers that submit at
//! once wait for one. Claims that find nothing stay with the writer, and the transaction that makes a task ready
//! also gives it to one of them. Long texts are written in pieces, so that nobody waits for the whole of one.

mod asking;
mod batch;
mod beats;
mod claims;
mod command;
mod descriptions;
mod documents;
mod errands;
mod fault;
mod feed;
mod harm;
mod housekeeping;
mod lanes;
mod laying;
mod leases;
mod lists;
mod lock;
mod misc;
mod open;
mod origins;
mod pieces;
mod place;
mod private;
mod queue;
mod readers;
mod reads;
mod registrations;
mod rows;
mod state;
mod store;
mod tasks;
#[cfg(test)]
mod tests;
mod unfinished;
mod workers;
mod writer;

pub use store::SqliteStore;
