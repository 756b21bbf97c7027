//! WAV with 16 bit samples.

use super::{Audio, EncodeError};

/// A WAV file of 16 bit samples.
pub fn encode(audio: &Audio) -> Result<Vec<u8>, EncodeError> {
    let channels = audio.channels().len();
    let refused = EncodeError::Audio { format: "WAV", channels, sample_rate: audio.sample_rate() };
    let count = u16::try_from(channels).ok().filter(|&count| count <= 1024).ok_or(refused.clone())?;
    let block = 2 * count;
    let bytes = audio.len().checked_mul(usize::from(block)).and_then(|size| u32::try_from(size).ok());
    let bytes = bytes.filter(|&size| size < u32::MAX - 64).ok_or(refused.clone())?;
    let rate = audio.sample_rate().checked_mul(u32::from(block)).ok_or(refused)?;
    let mut out = Vec::with_capacity(44 + bytes as usize);
    out.extend_from_slice(b"RIFF");
    out.extend_from_slice(&(36 + bytes).to_le_bytes());
    out.extend_from_slice(b"WAVEfmt \x10\0\0\0\x01\0");
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&audio.sample_rate().to_le_bytes());
    out.extend_from_slice(&rate.to_le_bytes());
    out.extend_from_slice(&block.to_le_bytes());
    out.extend_from_slice(&16u16.to_le_bytes());
    out.extend_from_slice(b"data");
    out.extend_from_slice(&bytes.to_le_bytes());
    out.extend(audio.interleaved_i16().flat_map(i16::to_le_bytes));
    Ok(out)
}
