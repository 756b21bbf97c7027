//! An event of the feed with its text, which is written once for all who read it.

use std::sync::OnceLock;

use bytes::Bytes;
use remuda_store::FeedItem;

/// An event, and how it is sent.
#[derive(Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) item: FeedItem,
    text: OnceLock<Bytes>,
}

impl Told {
    /// What it says. Whoever asks first writes it; the others get the same bytes.
    pub(crate) fn text(&self, write: impl FnOnce(&FeedItem) -> Bytes) -> &Bytes {
        self.text.get_or_init(|| write(&self.item))
    }
}

impl From<FeedItem> for Told {
    fn from(item: FeedItem) -> Self {
        Self { item, text: OnceLock::new() }
    }
}
