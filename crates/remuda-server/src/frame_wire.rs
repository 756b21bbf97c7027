//! Live frames on their way from one gateway to another.
//!
//! A frame is the length of its JSON, the JSON, the length of its picture, and the picture; lengths are four bytes, big end
//! first. A length of zero for the JSON is a sign of life and nothing else. The format is between gateways of one
//! installation only.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use remuda_core::{AttemptNo, TaskId};
use remuda_runner::frames::{Frame, FrameKind};
use serde::{Deserialize, Serialize};

/// A JSON longer than this is none of ours.
const MAX_JSON: usize = 64 << 10;

/// A picture larger than this is not passed on.
const MAX_PICTURE: usize = 8 << 20;

#[derive(Serialize, Deserialize)]
struct Header {
    attempt: AttemptNo,
    what: FrameKind,
}

/// Bytes that are no frame.
#[derive(Debug, thiserror::Error)]
#[error("the other gateway sent something that is no frame")]
pub(crate) struct NotAFrame;

/// A sign of life.
pub(crate) fn heartbeat() -> Bytes {
    Bytes::from_static(&[0, 0, 0, 0])
}

/// A frame as bytes; `None` when it is not worth sending.
pub(crate) fn encode(frame: &Frame) -> Option<Bytes> {
    let picture = match &frame.what {
        FrameKind::Preview { bytes, .. } | FrameKind::Binary { bytes, .. } => bytes.clone(),
        FrameKind::Progress { .. } | FrameKind::Message { .. } => Bytes::new(),
    };
    let json = serde_json::to_vec(&Header { attempt: frame.attempt, what: frame.what.clone() }).ok()?;
    let (json_length, picture_length) = (u32::try_from(json.len()).ok()?, u32::try_from(picture.len()).ok()?);
    if json.len() > MAX_JSON || picture.len() > MAX_PICTURE {
        return None;
    }
    let mut out = BytesMut::with_capacity(8 + json.len() + picture.len());
    out.put_u32(json_length);
    out.put_slice(&json);
    out.put_u32(picture_length);
    out.put_slice(&picture);
    Some(out.freeze())
}

/// Puts frames together again.
#[derive(Debug)]
pub(crate) struct Decoder {
    task: TaskId,
    buffer: BytesMut,
}

impl Decoder {
    pub(crate) fn new(task: TaskId) -> Self {
        Self { task, buffer: BytesMut::new() }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, NotAFrame> {
        loop {
            let Some(json_length) = length(&self.buffer, 0, MAX_JSON)? else { return Ok(None) };
            if json_length == 0 {
                self.buffer.advance(4);
                continue;
            }
            let Some(picture_length) = length(&self.buffer, 4 + json_length, MAX_PICTURE)? else {
                return Ok(None);
            };
            if self.buffer.len() < 8 + json_length + picture_length {
                return Ok(None);
            }
            self.buffer.advance(4);
            let json = self.buffer.split_to(json_length);
            self.buffer.advance(4);
            let picture = self.buffer.split_to(picture_length).freeze();
            let Header { attempt, mut what } = serde_json::from_slice(&json).map_err(|_| NotAFrame)?;
            if let FrameKind::Preview { bytes, .. } | FrameKind::Binary { bytes, .. } = &mut what {
                *bytes = picture;
            }
            return Ok(Some(Frame { task: self.task, attempt, what }));
        }
    }
}

fn length(buffer: &[u8], at: usize, most: usize) -> Result<Option<usize>, NotAFrame> {
    let Some(bytes) = buffer.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()) else {
        return Ok(None);
    };
    match usize::try_from(u32::from_be_bytes(bytes)) {
        Ok(length) if length <= most => Ok(Some(length)),
        _ => Err(NotAFrame),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut_and_rubbish_is_noticed() {
        let task = TaskId::new();
        let progress = FrameKind::Progress {
            fraction: 0.5,
            node: Some("3".to_owned()),
            value: 10.0,
            max: 20.0,
            nodes_done: 2,
            nodes: 7,
        };
        let preview =
            FrameKind::Preview { mime: "image/jpeg".to_owned(), bytes: Bytes::from_static(b"\x00\xff\xd8") };
        let frames = [progress, preview].map(|what| Frame { task, attempt: 2, what });
        let mut wire = heartbeat().to_vec();
        for frame in &frames {
            wire.extend_from_slice(&encode(frame).unwrap());
            wire.extend_from_slice(&heartbeat());
        }
        for size in [1, 3, 7, wire.len()] {
            let mut decoder = Decoder::new(task);
            let mut found = Vec::new();
            for piece in wire.chunks(size) {
                decoder.feed(piece);
                while let Some(frame) = decoder.next().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames, "in pieces of {size}");
        }
        let mut decoder = Decoder::new(task);
        decoder.feed(b"HTTP/1.1 200 OK");
        assert!(decoder.next().is_err());
    }
}
