//! The durable queue: one trait, SQLite and PostgreSQL behind it, one conformance suite.
//!
//! [`Store`] is the contract. Both implementations load rows, let `remuda-core` decide, and save; so what a claim,
//! a lost lease or a late report means is written once.

mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod feed;
#[cfg(test)]
mod growth;
mod keyring;
mod lines;
mod options;
mod postgres;
mod requests;
mod sqlite;
mod store;
mod together;
mod turns;
mod windows;

pub use clock::{Clock, ManualClock, SystemClock};
pub use error::{Error, Result};
pub use feed::{FeedEnds, FeedItem, FeedPage, FeedPlace, NoFeedPlace};
pub use keyring::{Keyring, KeyringError};
pub use options::{DocumentLimits, Options};
pub use postgres::PostgresStore;
pub use requests::{
    Acquired, AdoptRequest, Asset, AssetUse, BeatReply, BeatRequest, Change, ClaimRequest, Counts,
    Descriptions, Document, DocumentInfo, EndReply, Glance, Hide, LeaseBeat, LeaseNews, ListQuery, LookedUp,
    Lookup, OriginOrder, OriginPage, OriginQuery, Page, Position, Registrant, Submitted, Tidied, WorkerBeat,
};
pub use sqlite::SqliteStore;
pub use store::{
    DocumentStore, EVENTS_TEXT, ErrandStore, HousekeepingStore, KeyStore, RunnerStore, Store, TaskStore,
    WorkerStore,
};
