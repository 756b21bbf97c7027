//! The queue in PostgreSQL: any number of processes over one database.
//!
//! ```text
//!  submit, end, give_back ─▶ queue ─▶ batch: load ─▶ decide ─▶ save ─▶ PostgreSQL
//!  claim ───────────────────▶ (parked)        ▲                        │
//!                                             └── listen, poll ◀───────┘ outbox (NOTIFY)
//! ```
//!
//! What many callers want at once is written together: one transaction reads and locks everything it needs, the core
//! decides, one statement for each table writes the result. Rows are locked in the order of their keys.
//!
//! Deliberately absent: named prepared statements, session state and advisory locks, which poolers that switch
//! connections between transactions do not keep; and anything that needs `LISTEN` to work.

mod address;
mod batch;
mod beat;
mod columns;
mod descriptions;
mod desk;
mod documents;
mod errands;
mod fault;
mod feed;
mod harm;
mod inner;
mod lanes;
mod ledger;
mod listen;
mod load;
mod origins;
mod outbox;
mod poll;
mod queue;
mod records;
mod registrations;
mod rows;
mod save;
mod schema;
mod secrets;
mod session;
mod store;
mod tasks;
mod tidy;
mod usages;
mod workers;
mod write;

pub use store::PostgresStore;
