//! What comes out of the store, and what is known of what went in.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A file, or a part of one, on its way out.
pub struct Content {
    /// The size of the whole file, also when only a part of it was asked for.
    pub size: u64,
    /// The part that the stream brings.
    pub range: Range<u64>,
    /// The bytes. A stream that ends without an error has brought exactly `range`.
    pub stream: BoxStream<'static, Result<Bytes>>,
}

impl Content {
    /// Everything that the stream brings, for files that are known to be small.
    pub async fn bytes(mut self, limit: u64) -> Result<Bytes> {
        if self.range.end - self.range.start > limit {
            return Err(Error::TooLarge { limit });
        }
        let mut all = BytesMut::new();
        while let Some(chunk) = self.stream.next().await {
            all.extend_from_slice(&chunk?);
        }
        Ok(all.freeze())
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content")
            .field("size", &self.size)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

/// What is known of a file after it was written: exactly the bytes that are in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// In bytes.
    pub size: u64,
    /// Of the whole content.
    pub sha256: Sha256,
}

/// A SHA-256, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Sha256(pub [u8; 32]);

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Sha256> for String {
    fn from(sha256: Sha256) -> String {
        sha256.to_string()
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("a SHA-256 is 64 hexadecimal digits")]
pub struct NotSha256;

impl FromStr for Sha256 {
    type Err = NotSha256;

    fn from_str(text: &str) -> Result<Self, NotSha256> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(NotSha256);
        }
        let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let (Some(high), Some(low)) = (nibble(pair[0]), nibble(pair[1])) else { return Err(NotSha256) };
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Sha256 {
    type Error = NotSha256;

    fn try_from(text: String) -> Result<Self, NotSha256> {
        text.parse()
    }
}
