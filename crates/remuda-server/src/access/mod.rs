//! Who may do what: API keys, scopes, tenants, and the rules before the first key exists.

mod caller;
mod failures;
mod gate;
mod headers;
mod hosts;
mod keys;
mod page;
mod presented;
mod tied;

pub(crate) use caller::{AdminCaller, Caller, ReadCaller, SubmitCaller, WorkerCaller};
pub(crate) use failures::Failures;
pub(crate) use gate::{ClusterCaller, OPEN, gate};
pub(crate) use headers::told_to_browsers;
pub(crate) use hosts::{ANY_ORIGIN, Hosts};
pub(crate) use keys::{Admission, KeyCache};
pub(crate) use tied::Line;
