//! A long answer, written piece by piece: text, and files as base64, read as the client takes them.

use std::io;
use std::sync::Arc;
use std::vec;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use remuda_files::{FileKey, Files};

use crate::share::{Pass, keeping};

/// A part of an answer.
#[derive(Debug)]
pub(super) enum Piece {
    /// Sent as it is.
    Text(String),
    /// Sent as base64.
    File {
        /// Where it is in the file store.
        key: FileKey,
        /// In bytes.
        size: u64,
    },
}

impl Piece {
    /// How many bytes of the answer it is.
    fn length(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::File { size, .. } => size.div_ceil(3) * 4,
        }
    }
}

/// How long the whole answer is.
pub(super) fn length(pieces: &[Piece]) -> u64 {
    pieces.iter().map(Piece::length).sum()
}

/// How much of it is held in memory until it was sent.
pub(super) fn held(pieces: &[Piece]) -> u64 {
    let text = |piece: &Piece| match piece {
        Piece::Text(text) => text.len() as u64,
        Piece::File { .. } => 0,
    };
    pieces.iter().map(text).sum()
}

/// The pieces, one after the other. The permits end with them: what is under way, and what is in memory.
pub(super) fn body(pieces: Vec<Piece>, files: Files, permit: Pass, memory: Pass) -> Body {
    let memory = Arc::new(memory);
    let sending = Sending { pieces: pieces.into_iter(), files, open: None, memory, _permit: permit };
    Body::from_stream(stream::try_unfold(sending, |mut sending| async move {
        let next = sending.next().await.inspect_err(|error| tracing::warn!(%error, "an answer broke off"))?;
        Ok::<_, io::Error>(next.map(|bytes| (bytes, sending)))
    }))
}

struct Sending {
    pieces: vec::IntoIter<Piece>,
    files: Files,
    open: Option<Reading>,
    /// What the texts were charged: until the last of them was written.
    memory: Arc<Pass>,
    _permit: Pass,
}

struct Reading {
    stream: BoxStream<'static, remuda_files::Result<Bytes>>,
    encoder: Encoder,
}

impl Sending {
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(reading) = &mut self.open {
                let encoded = match reading.stream.next().await {
                    Some(chunk) => reading.encoder.encode(&chunk.map_err(io::Error::other)?),
                    None => {
                        let end = reading.encoder.end();
                        self.open = None;
                        end
                    }
                };
                if !encoded.is_empty() {
                    return Ok(Some(encoded.into()));
                }
                continue;
            }
            match self.pieces.next() {
                None => return Ok(None),
                Some(Piece::Text(text)) => return Ok(Some(keeping(text.into(), Arc::clone(&self.memory)))),
                Some(Piece::File { key, size }) => {
                    let content = self.files.get(&key, None).await.map_err(io::Error::other)?;
                    if content.size != size {
                        let found = content.size;
                        let error =
                            format!("{key} has {found} bytes in the file store and {size} in its record");
                        return Err(io::Error::other(error));
                    }
                    self.open = Some(Reading { stream: content.stream, encoder: Encoder::default() });
                }
            }
        }
    }
}

/// Base64 of bytes that come in pieces of any size.
#[derive(Debug, Default)]
struct Encoder {
    /// What did not make a whole group of three.
    rest: Vec<u8>,
}

impl Encoder {
    fn encode(&mut self, mut chunk: &[u8]) -> String {
        let mut text = String::with_capacity((self.rest.len() + chunk.len()) / 3 * 4);
        if !self.rest.is_empty() {
            let missing = (3 - self.rest.len()).min(chunk.len());
            self.rest.extend_from_slice(&chunk[..missing]);
            chunk = &chunk[missing..];
            if self.rest.len() < 3 {
                return text;
            }
            STANDARD.encode_string(&self.rest, &mut text);
            self.rest.clear();
        }
        let whole = chunk.len() - chunk.len() % 3;
        STANDARD.encode_string(&chunk[..whole], &mut text);
        self.rest.extend_from_slice(&chunk[whole..]);
        text
    }

    fn end(&mut self) -> String {
        STANDARD.encode(std::mem::take(&mut self.rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_give_the_same_text_as_the_whole() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for length in [0, 1, 2, 3, 4, 5, 998, 999, 1000] {
            for step in [1, 2, 3, 4, 5, 7, 64, 1000] {
                let mut encoder = Encoder::default();
                let mut text = String::new();
                for chunk in bytes[..length].chunks(step) {
                    text.push_str(&encoder.encode(chunk));
                }
                text.push_str(&encoder.end());
                assert_eq!(text, STANDARD.encode(&bytes[..length]), "{length} bytes by {step}");
                let piece = Piece::File { key: FileKey::parse("outputs/x").unwrap(), size: length as u64 };
                assert_eq!(piece.length(), text.len() as u64);
            }
        }
    }
}
