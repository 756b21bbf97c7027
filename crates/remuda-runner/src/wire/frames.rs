//! Live frames of several tasks in one body.
//!
//! ```text
//! ┌────────────────────────┬──────────────────────────────────┬─────────────────┐
//! │ length of the head,    │ head, JSON:                      │ the preview,    │  … the next frame
//! │ 4 bytes, highest first │ {task, attempt, what, payload}   │ `payload` bytes │
//! └────────────────────────┴──────────────────────────────────┴─────────────────┘
//! ```
//!
//! Previews are pictures, several in a second: as JSON they would be a third larger and read twice.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use remuda_core::{AttemptNo, TaskId};
use serde::{Deserialize, Serialize};

use crate::frames::{Frame, FrameKind};

/// The media type of such a body.
pub const MIME: &str = "application/vnd.remuda.frames";

/// The largest body.
pub const LARGEST: usize = 8 << 20;

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

/// Writes frames, the first ones first, as many as a body holds. Tells how many it took.
pub fn encode(frames: &[Frame]) -> (Bytes, usize) {
    let mut body = BytesMut::new();
    for (n, frame) in frames.iter().enumerate() {
        let payload = match &frame.what {
            FrameKind::Preview { bytes, .. } | FrameKind::Binary { bytes, .. } => bytes.clone(),
            FrameKind::Progress { .. } | FrameKind::Message { .. } => Bytes::new(),
        };
        let head = Head {
            task: frame.task,
            attempt: frame.attempt,
            what: frame.what.clone(),
            payload: payload.len(),
        };
        // Numbers, names and options of them cannot fail to be written; one that did would only be a missing frame.
        let Ok(head) = serde_json::to_vec(&head) else { continue };
        let Ok(length) = u32::try_from(head.len()) else { continue };
        if head.len() > LARGEST_HEAD || payload.len() > LARGEST_PREVIEW {
            continue;
        }
        if body.len() + 4 + head.len() + payload.len() > LARGEST {
            return (body.freeze(), n);
        }
        body.put_u32(length);
        body.extend_from_slice(&head);
        body.extend_from_slice(&payload);
    }
    (body.freeze(), frames.len())
}

/// Reads frames.
pub fn decode(mut body: Bytes) -> Result<Vec<Frame>, BadFrames> {
    let mut frames = Vec::new();
    while body.has_remaining() {
        let bad = |why: &str| BadFrames { n: frames.len(), why: why.to_owned() };
        let length = body.try_get_u32().map_err(|_| bad("the body ends in it"))?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > LARGEST_HEAD {
            return Err(bad("its head is too long"));
        }
        if body.remaining() < length {
            return Err(bad("the body ends in it"));
        }
        let head: Head =
            serde_json::from_slice(&body.split_to(length)).map_err(|error| bad(&error.to_string()))?;
        if head.payload > LARGEST_PREVIEW {
            return Err(bad("its preview is too large"));
        }
        if body.remaining() < head.payload {
            return Err(bad("the body ends in it"));
        }
        let payload = body.split_to(head.payload);
        let what = match head.what {
            FrameKind::Preview { mime, .. } => FrameKind::Preview { mime, bytes: payload },
            FrameKind::Binary { event, .. } => FrameKind::Binary { event, bytes: payload },
            other @ (FrameKind::Progress { .. } | FrameKind::Message { .. }) => other,
        };
        frames.push(Frame { task: head.task, attempt: head.attempt, what });
    }
    Ok(frames)
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

    #[test]
    fn frames_are_read_as_they_were_written() {
        let frames = vec![progress(), preview(100_000), preview(0), progress()];
        let (body, taken) = encode(&frames);
        assert_eq!(taken, 4);
        assert_eq!(decode(body).unwrap(), frames);
        assert_eq!(decode(Bytes::new()).unwrap(), vec![]);
    }

    #[test]
    fn a_body_is_never_larger_than_it_may_be() {
        let frames: Vec<Frame> = (0..8).map(|_| preview(LARGEST_PREVIEW)).collect();
        let (body, taken) = encode(&frames);
        assert!(taken == 3 && body.len() <= LARGEST, "{taken} frames in {} bytes", body.len());
        let (body, taken) = encode(&[preview(LARGEST_PREVIEW + 1), progress()]);
        assert_eq!((taken, decode(body).unwrap().len()), (2, 1), "what is too large is left out");
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
