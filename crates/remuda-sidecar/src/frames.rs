//! Live frames of several tasks in one body or stream: from a sidecar to a gateway, and between gateways.
//!
//! ```text
//! ┌────────────────────────┬──────────────────────────────────┬─────────────────────┐
//! │ length of the head,    │ head, JSON:                      │ picture or message, │  … the next frame
//! │ 4 bytes, highest first │ {task, attempt, what, payload}   │ `payload` bytes     │
//! └────────────────────────┴──────────────────────────────────┴─────────────────────┘
//! ```
//!
//! Pictures come several in a second: as JSON they would be a third larger and read twice. A head of length zero is a sign
//! of life and nothing else.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use remuda_core::{AttemptNo, TaskId};
use serde::{Deserialize, Serialize};

use remuda_frames::{Frame, FrameKind};

/// The media type of such a body.
pub const MIME: &str = "application/vnd.remuda.frames";

/// The largest body.
pub const LARGEST: usize = LARGEST_PAYLOAD + LARGEST_HEAD + 4;

/// A body of several frames is not larger than this.
const FULL: usize = 8 << 20;

/// A body has no more frames than this.
pub const MOST: usize = 4096;

/// A picture or message that is larger is not sent. Results can be sent as pictures.
const LARGEST_PAYLOAD: usize = 32 << 20;

/// A preview that is larger is not sent.
pub const LARGEST_PREVIEW: usize = 2 << 20;

/// The largest head.
const LARGEST_HEAD: usize = 64 << 10;

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    task: TaskId,
    attempt: AttemptNo,
    what: FrameKind,
    #[serde(default)]
    payload: usize,
}

/// The body is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("frame {n} of the body cannot be read: {why}")]
pub struct BadFrames {
    /// Which one, from 0.
    pub n: usize,
    /// What is wrong.
    pub why: String,
}

/// A sign of life.
pub fn heartbeat() -> Bytes {
    Bytes::from_static(&[0; 4])
}

/// A frame as bytes; `None` when it is too large to be sent.
pub fn encode_one(frame: &Frame) -> Option<Bytes> {
    let (what, payload) = match frame.what.clone() {
        FrameKind::Message { kind, data } => {
            (FrameKind::Message { kind, data: String::new() }, Bytes::from(data))
        }
        FrameKind::Preview { mime, bytes } => (FrameKind::Preview { mime, bytes: Bytes::new() }, bytes),
        FrameKind::Binary { event, bytes } => (FrameKind::Binary { event, bytes: Bytes::new() }, bytes),
        progress @ FrameKind::Progress { .. } => (progress, Bytes::new()),
    };
    let most = if matches!(what, FrameKind::Preview { .. }) { LARGEST_PREVIEW } else { LARGEST_PAYLOAD };
    let head = Head { task: frame.task, attempt: frame.attempt, what, payload: payload.len() };
    // Numbers, names and options of them cannot fail to be written; one that did would only be a missing frame.
    let head = serde_json::to_vec(&head).ok()?;
    if head.len() > LARGEST_HEAD || payload.len() > most {
        return None;
    }
    let mut out = BytesMut::with_capacity(4 + head.len() + payload.len());
    out.put_u32(u32::try_from(head.len()).ok()?);
    out.extend_from_slice(&head);
    out.extend_from_slice(&payload);
    Some(out.freeze())
}

/// Writes frames, the first ones first, as many as a body holds. Tells how many it took.
pub fn encode<F: AsRef<Frame>>(frames: &[F]) -> (Bytes, usize) {
    let mut body = BytesMut::new();
    let mut count = 0;
    for (n, frame) in frames.iter().enumerate() {
        let Some(frame) = encode_one(frame.as_ref()) else { continue };
        if count == MOST || (count > 0 && body.len() + frame.len() > FULL) {
            return (body.freeze(), n);
        }
        count += 1;
        body.extend_from_slice(&frame);
    }
    (body.freeze(), frames.len())
}

/// Reads frames.
pub fn decode(body: Bytes) -> Result<Vec<Frame>, BadFrames> {
    let mut decoder = Decoder { buffer: BytesMut::from(body), n: 0 };
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next_frame()? {
        if frames.len() == MOST {
            return Err(decoder.bad(&format!("a body has at most {MOST}")));
        }
        frames.push(frame);
    }
    if decoder.buffer.is_empty() { Ok(frames) } else { Err(decoder.bad("the body ends in it")) }
}

/// Puts frames of a stream together again.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
    /// How many there were.
    n: usize,
}

impl Decoder {
    /// Takes a piece of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, BadFrames> {
        loop {
            let Some(length) = self.buffer.first_chunk::<4>() else { return Ok(None) };
            let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
            if length > LARGEST_HEAD {
                return Err(self.bad("its head is too long"));
            }
            if length == 0 {
                self.buffer.advance(4);
                continue;
            }
            let Some(head) = self.buffer.get(4..4 + length) else { return Ok(None) };
            let head: Head = serde_json::from_slice(head).map_err(|error| self.bad(&error.to_string()))?;
            if head.payload > LARGEST_PAYLOAD {
                return Err(self.bad("its payload is too large"));
            }
            if self.buffer.len() < 4 + length + head.payload {
                return Ok(None);
            }
            self.buffer.advance(4 + length);
            let payload = self.buffer.split_to(head.payload);
            // A part of the body would keep all of it in memory as long as somebody has the picture.
            let payload = if payload.len() <= LARGEST_PREVIEW {
                Bytes::copy_from_slice(&payload)
            } else {
                payload.freeze()
            };
            let what = match head.what {
                FrameKind::Preview { mime, .. } => FrameKind::Preview { mime, bytes: payload },
                FrameKind::Binary { event, .. } => FrameKind::Binary { event, bytes: payload },
                FrameKind::Message { kind, .. } => {
                    let data =
                        String::from_utf8(payload.into()).map_err(|_| self.bad("its message is not text"))?;
                    FrameKind::Message { kind, data }
                }
                progress @ FrameKind::Progress { .. } => progress,
            };
            self.n += 1;
            return Ok(Some(Frame { task: head.task, attempt: head.attempt, what }));
        }
    }

    fn bad(&self, why: &str) -> BadFrames {
        BadFrames { n: self.n, why: why.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Frame {
        let what = FrameKind::Progress {
            fraction: 0.25,
            node: Some("3".to_owned()),
            value: 5.0,
            max: 20.0,
            nodes_done: 1,
            nodes: 7,
        };
        Frame { task: TaskId::new(), attempt: 2, what }
    }

    fn preview(size: usize) -> Frame {
        let bytes = Bytes::from(vec![7; size]);
        let what = FrameKind::Preview { mime: "image/jpeg".to_owned(), bytes };
        Frame { task: TaskId::new(), attempt: 1, what }
    }

    fn message(data: &str) -> Frame {
        let what = FrameKind::Message { kind: "executed".to_owned(), data: data.to_owned() };
        Frame { task: TaskId::new(), attempt: 3, what }
    }

    fn binary(size: usize) -> Frame {
        let what = FrameKind::Binary { event: 4, bytes: Bytes::from(vec![9; size]) };
        Frame { task: TaskId::new(), attempt: 3, what }
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let frames =
            vec![progress(), preview(100_000), message("{\"ä\": 1}"), preview(0), binary(5), progress()];
        let (body, taken) = encode(&frames);
        assert_eq!(taken, 6);
        assert_eq!(decode(body).unwrap(), frames);
        assert_eq!(decode(Bytes::new()).unwrap(), vec![]);
    }

    #[test]
    fn frames_of_a_stream_survive_any_cut_and_rubbish_is_noticed() {
        let frames = [progress(), message(&"long ".repeat(30_000)), preview(3), binary(0)];
        let mut wire = heartbeat().to_vec();
        for frame in &frames {
            wire.extend_from_slice(&encode_one(frame).unwrap());
            wire.extend_from_slice(&heartbeat());
        }
        for size in [1, 3, 7, wire.len()] {
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for piece in wire.chunks(size) {
                decoder.feed(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames, "in pieces of {size}");
        }
        let mut decoder = Decoder::default();
        decoder.feed(b"HTTP/1.1 200 OK");
        assert!(decoder.next_frame().is_err());
    }

    #[test]
    fn a_body_is_never_larger_than_it_may_be() {
        let frames: Vec<Frame> = (0..8).map(|_| preview(LARGEST_PREVIEW)).collect();
        let (body, taken) = encode(&frames);
        assert!(taken == 3 && body.len() <= FULL, "{taken} frames in {} bytes", body.len());
        let (body, taken) = encode(&[preview(LARGEST_PREVIEW + 1), progress()]);
        assert_eq!((taken, decode(body).unwrap().len()), (2, 1), "what is too large is left out");
        // A result that is sent as a picture has a body of its own.
        let (body, taken) = encode(&[binary(LARGEST_PAYLOAD), progress()]);
        assert!(taken == 1 && body.len() <= LARGEST && decode(body).unwrap().len() == 1);
        assert_eq!(encode_one(&binary(LARGEST_PAYLOAD + 1)), None);
    }

    #[test]
    fn damaged_bodies_are_refused_at_every_cut() {
        let (body, _) = encode(&[progress(), preview(50)]);
        let (first, _) = encode(&[progress()]);
        for cut in 1..body.len() {
            if cut != first.len() {
                assert!(decode(body.slice(..cut)).is_err(), "cut after {cut} of {}", body.len());
            }
        }
        let mut long = BytesMut::from(&body[..]);
        long[0] = 0xff;
        assert_eq!(decode(long.freeze()).unwrap_err().why, "its head is too long");
    }
}
