//! What happens during a run: clients that want tasks done, and lanes of faults that are against it.

mod clients;
mod lanes;
mod stage;

pub(crate) use clients::{Cancel, Story, clients};
pub(crate) use lanes::{Done, trouble};
pub(crate) use stage::Stage;
