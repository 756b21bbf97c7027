//! What one guest may take of what there is for all: permits, memory, connections and requests per second.
//!
//! ```text
//!   request ──▶ gate ──▶ visit: who it is, what it was charged ──▶ handler ──▶ answer
//!                          │                                         │
//!                        rates                           rooms: so many at once, so many bytes
//! ```
//!
//! A room is shared by one rule: nobody may hold more than three times what is still free. Alone, a guest gets three quarters; the
//! more a room fills, the less the largest get, and whoever comes with nothing gets in while anything is free.

mod answer;
mod guest;
mod ledger;
mod paced;
mod proxies;
mod rates;
mod room;
mod turned_away;
mod visit;

pub(crate) use answer::{Held, keeping};
pub(crate) use guest::{Address, Guest};
pub(crate) use ledger::{Ledger, Refusal};
pub(crate) use paced::{Charged, paced};
pub(crate) use proxies::Proxies;
pub use proxies::{BadNetwork, Network};
pub(crate) use rates::Rates;
pub(crate) use room::{Pass, Room};
pub(crate) use turned_away::TurnedAway;
pub(crate) use visit::{PATIENCE, Visit};
