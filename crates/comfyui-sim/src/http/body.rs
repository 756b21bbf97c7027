//! Reading request bodies: bounded, chunk by chunk, unpacked.

use bytes::Bytes;
use flate2::write::{DeflateDecoder, GzDecoder, ZlibDecoder};
use http::header::{self, HeaderMap};
use http_body_util::{BodyExt, combinators::BoxBody};
use hyper::body::Incoming;
use std::io::{self, Write};
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// How long aiohttp still listens to a body that nobody wants.
const LINGER: Duration = Duration::from_secs(10);

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// More bytes than the server takes.
    #[error("the body is too large")]
    TooLarge,
    /// The connection broke, or the packing is not what the header says.
    #[error("the body is broken")]
    Broken,
}

/// The body of one request.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Option<BoxBody<Bytes, hyper::Error>>,
    unpacker: Unpacker,
    limit: u64,
    read: u64,
    expects_continue: bool,
}

#[derive(Debug)]
enum Unpacker {
    Plain,
    Gzip(GzDecoder<Vec<u8>>),
    /// `deflate` means zlib, but some senders leave the wrapping out: the first byte tells.
    Deflate(Option<Deflate>),
}

#[derive(Debug)]
enum Deflate {
    Zlib(ZlibDecoder<Vec<u8>>),
    Raw(DeflateDecoder<Vec<u8>>),
}

impl RequestBody {
    pub(crate) fn new(incoming: Incoming, headers: &HeaderMap, limit: u64) -> Self {
        let encoding = headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok());
        let unpacker = match encoding.map(str::to_ascii_lowercase).as_deref() {
            Some("gzip" | "x-gzip") => Unpacker::Gzip(GzDecoder::new(Vec::new())),
            Some("deflate") => Unpacker::Deflate(None),
            _ => Unpacker::Plain,
        };
        Self {
            incoming: Some(incoming.boxed()),
            unpacker,
            limit,
            read: 0,
            expects_continue: headers.contains_key(header::EXPECT),
        }
    }

    /// A body without a connection.
    #[cfg(test)]
    pub(crate) fn of_chunks<'a>(chunks: impl Iterator<Item = &'a [u8]>, limit: u64) -> Self {
        use futures_util::stream;
        use hyper::body::Frame;
        let frames: Vec<_> = chunks.map(|chunk| Ok(Frame::data(Bytes::copy_from_slice(chunk)))).collect();
        Self {
            incoming: Some(http_body_util::StreamBody::new(stream::iter(frames)).boxed()),
            unpacker: Unpacker::Plain,
            limit,
            read: 0,
            expects_continue: false,
        }
    }

    /// The next bytes; `None` at the end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            let Some(incoming) = &mut self.incoming else {
                return Ok(None);
            };
            let Some(frame) = incoming.frame().await else {
                self.incoming = None;
                return Ok(None);
            };
            let frame = frame.map_err(|_| BodyError::Broken)?;
            let Ok(data) = frame.into_data() else { continue };
            let data = self.unpacker.unpack(data).map_err(|_| BodyError::Broken)?;
            self.read += data.len() as u64;
            if self.read > self.limit {
                return Err(BodyError::TooLarge);
            }
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }

    /// The whole of it.
    pub(crate) async fn all(&mut self) -> Result<Vec<u8>, BodyError> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    /// Reads what nobody wanted, so that a client that is still sending can hear the answer and go on.
    pub(crate) fn drain(self, tasks: &TaskTracker) {
        let Some(mut incoming) = self.incoming else { return };
        // Reading on would invite a client that waits for the invitation.
        if self.expects_continue && self.read == 0 {
            return;
        }
        tasks.spawn(async move {
            let rest = async { while let Some(Ok(_)) = incoming.frame().await {} };
            // After that time the connection is closed.
            let _ = timeout(LINGER, rest).await;
        });
    }
}

impl Unpacker {
    fn unpack(&mut self, data: Bytes) -> io::Result<Bytes> {
        match self {
            Self::Plain => Ok(data),
            Self::Gzip(decoder) => {
                decoder.write_all(&data)?;
                decoder.flush()?;
                Ok(std::mem::take(decoder.get_mut()).into())
            }
            Self::Deflate(decoder) => {
                let Some(&first) = data.first() else {
                    return Ok(data);
                };
                let decoder = decoder.get_or_insert_with(|| match first & 0x0f {
                    8 => Deflate::Zlib(ZlibDecoder::new(Vec::new())),
                    _ => Deflate::Raw(DeflateDecoder::new(Vec::new())),
                });
                match decoder {
                    Deflate::Zlib(decoder) => {
                        decoder.write_all(&data)?;
                        decoder.flush()?;
                        Ok(std::mem::take(decoder.get_mut()).into())
                    }
                    Deflate::Raw(decoder) => {
                        decoder.write_all(&data)?;
                        decoder.flush()?;
                        Ok(std::mem::take(decoder.get_mut()).into())
                    }
                }
            }
        }
    }
}
