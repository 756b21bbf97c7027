//! Ports and connections on 127.0.0.1.

mod address;
mod port;
mod proxy;

pub(crate) use address::at_port;
pub use address::{AddressError, target};
pub use port::free_port;
pub use proxy::Proxy;
