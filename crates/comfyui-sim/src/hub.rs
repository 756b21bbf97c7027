//! The sockets: who is connected, and the one loop that sends to them in order.

use crate::json::Json;
use bytes::Bytes;

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
        /// 1 preview, 3 text.
        event: u32,
        /// The rest of the frame.
        payload: Bytes,
    },
    /// A preview: event 4 with metadata for sockets that announced it, event 1 for the others.
    Preview {
        /// 1 JPEG, 2 PNG.
        format: u32,
        /// The image file.
        image: Bytes,
        /// The metadata of event 4.
        metadata: Json,
    },
}
