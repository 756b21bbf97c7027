//! The sockets: who is connected, and the one loop that sends to them in order.

use crate::json::Json;
use bytes::Bytes;

/// Where the engine puts its messages: one queue, sent by one loop, one socket after the other.
pub(crate) trait Hub: Send + Sync {
    /// Queues a message for the socket of one client, or for all sockets.
    fn send(&self, message: Outgoing, to: Option<&str>);

    /// Whether the socket of that client announced `supports_preview_metadata`. Never true for `None`.
    fn supports_preview_metadata(&self, client: Option<&str>) -> bool;
}

/// One message on its way to the sockets.
#[derive(Debug, Clone)]
pub(crate) enum Outgoing {
    /// A `{"type", "data"}` text frame.
    Text {
        /// The `type`.
        event: &'static str,
        /// The `data`.
        data: Json,
    },
    /// A binary frame: event number and what follows it.
    Binary {
        /// 1 preview, 3 text, 4 preview with metadata.
        event: u32,
        /// The rest of the frame.
        payload: Bytes,
    },
    /// A frame that JSON cannot hold: ends the message loop, and with it the process, if there is a
    /// socket to send it to.
    Unserializable,
    /// A frame for a `client_id` that is a list or an object: looking for its socket ends the message
    /// loop, and with it the process, whoever is connected.
    Unaddressable,
}
