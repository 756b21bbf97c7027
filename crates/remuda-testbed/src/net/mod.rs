//! Ports and connections on 127.0.0.1.

mod port;

pub use port::free_port;
