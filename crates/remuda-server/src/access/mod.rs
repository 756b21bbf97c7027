//! Who may do what: API keys, scopes, tenants, and the rules before the first key exists.

mod caller;
mod gate;
mod hosts;
mod keys;
mod page;
mod presented;

pub(crate) use caller::{AdminCaller, Caller, ReadCaller, SubmitCaller, WorkerCaller};
pub(crate) use gate::{ClusterCaller, gate};
pub(crate) use hosts::{ANY_ORIGIN, Hosts};
pub(crate) use keys::KeyCache;
