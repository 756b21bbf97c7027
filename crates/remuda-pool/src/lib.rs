#![doc = include_str!("../README.md")]

mod book;
mod clock;
mod effort;
mod line;
mod marks;
mod pool;
mod roll;
mod turns;
mod watchdog;
mod work;

pub use book::{BOOK_FILE, HarmBook, Incident, IncidentKind};
pub use clock::{Clock, Pulse};
pub use marks::{MARKS_FILE, Mark, Marks};
pub use pool::{Pool, PoolOptions};
pub use roll::Running;
pub use turns::Turn;
pub use watchdog::{Watchdog, WatchdogOptions};
pub use work::{Kept, NotDone, Work};
