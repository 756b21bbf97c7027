//! Headers of plain sound files.

use super::bytes::Bytes;
use super::{AudioInfo, checked_audio};
use crate::media::DecodeError;

pub(super) fn wav(bytes: &[u8]) -> Result<AudioInfo, DecodeError> {
    let cut = || DecodeError::broken("WAV", "no format or no samples");
    let mut rest = Bytes(bytes).from(12);
    let mut format = None;
    while let (Some(name), Some(size)) = (rest.array::<4>(0), rest.u32_little(4)) {
        let size = size as usize;
        let contents = Bytes(rest.part(8, size));
        match &name {
            b"fmt " => format = Some(contents),
            b"data" => {
                let format = format.ok_or_else(cut)?;
                let channels = format.u16_little(2).ok_or_else(cut)?;
                let sample_rate = format.u32_little(4).ok_or_else(cut)?;
                let per_second = format.u32_little(8).ok_or_else(cut)?;
                let seconds = contents.0.len() as f64 / f64::from(per_second);
                return checked_audio("WAV", AudioInfo { sample_rate, channels, seconds });
            }
            _ => {}
        }
        rest = rest.from(8 + size.next_multiple_of(2));
    }
    Err(cut())
}

pub(super) fn flac(bytes: &[u8]) -> Result<AudioInfo, DecodeError> {
    let packed = Bytes(bytes).u64(18).ok_or_else(|| DecodeError::broken("FLAC", "cut off"))?;
    let sample_rate = (packed >> 44) as u32;
    let channels = (packed >> 41 & 7) as u32 + 1;
    let seconds = (packed & 0xf_ffff_ffff) as f64 / f64::from(sample_rate);
    checked_audio("FLAC", AudioInfo { sample_rate, channels, seconds })
}

pub(super) fn mp3(bytes: &[u8]) -> Result<AudioInfo, DecodeError> {
    let none = || DecodeError::broken("MP3", "no frame inside");
    let start = match bytes {
        // The size of the tag in front has seven bits in each of four bytes.
        [b'I', b'D', b'3', _, _, _, a, b, c, d, ..] => {
            10 + [a, b, c, d].into_iter().fold(0, |size, byte| size << 7 | usize::from(byte & 0x7f))
        }
        _ => 0,
    };
    let frame = Bytes(bytes).from(start);
    let header = frame.u32(0).filter(|header| header >> 21 == 0x7ff).ok_or_else(none)?;
    let version = header >> 19 & 3;
    let (divisor, samples) = match version {
        3 => (1, 1152),
        2 => (2, 576),
        0 => (4, 576),
        _ => return Err(none()),
    };
    let rate = [44_100, 48_000, 32_000].get((header >> 10 & 3) as usize).ok_or_else(none)? / divisor;
    let channels = if header >> 6 & 3 == 3 { 1 } else { 2 };
    let side_info = match (version, channels) {
        (3, 2) => 32,
        (3, _) | (_, 2) => 17,
        _ => 9,
    };
    let info = frame.from(4 + side_info);
    let length = match info.part(0, 4) {
        // The number of frames, if the flags say that it is there, and what to cut off at both ends.
        b"Info" | b"Xing" if info.u32(4).is_some_and(|flags| flags & 1 == 1) => {
            let frames = u64::from(info.u32(8).ok_or_else(none)?) * samples;
            frames.saturating_sub(cut_off(info))
        }
        _ => {
            let kilobits = kilobits(version == 3, header >> 12 & 15).ok_or_else(none)?;
            frame.0.len() as u64 * u64::from(rate) / (kilobits * 125)
        }
    };
    let seconds = length as f64 / f64::from(rate);
    checked_audio("MP3", AudioInfo { sample_rate: rate, channels, seconds })
}

/// Samples that the encoder put in front and behind, from the extension that LAME began.
fn cut_off(info: Bytes<'_>) -> u64 {
    let flags = info.u32(4).unwrap_or(0);
    let present = |flag: u32, size: usize| if flags & flag == 0 { 0 } else { size };
    let extension = 8 + present(1, 4) + present(2, 4) + present(4, 100) + present(8, 4);
    let [a, b, c] = info.array(extension + 21).unwrap_or_default();
    let packed = u64::from(a) << 16 | u64::from(b) << 8 | u64::from(c);
    (packed >> 12) + (packed & 0xfff)
}

/// The bit rate of layer III.
fn kilobits(first_version: bool, index: u32) -> Option<u64> {
    const FIRST: [u64; 15] = [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320];
    const OTHERS: [u64; 15] = [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];
    let table = if first_version { FIRST } else { OTHERS };
    table.get(index as usize).copied().filter(|kilobits| *kilobits > 0)
}

pub(super) fn ogg(bytes: &[u8]) -> Result<AudioInfo, DecodeError> {
    let unknown = || DecodeError::broken("Ogg", "neither Opus nor Vorbis inside");
    // The first page holds one packet, after 27 bytes and a single lacing value.
    let head = Bytes(bytes).from(28);
    let (sample_rate, channels, skipped) = if head.0.starts_with(b"OpusHead") {
        (48_000, head.0.get(9), head.u16_little(10).unwrap_or(0))
    } else if head.0.starts_with(b"\x01vorbis") {
        (head.u32_little(12).ok_or_else(unknown)?, head.0.get(11), 0)
    } else {
        return Err(unknown());
    };
    let channels = channels.copied().map(u32::from).ok_or_else(unknown)?;
    let end = last_position(bytes).unwrap_or(0).saturating_sub(skipped.into());
    checked_audio("Ogg", AudioInfo { sample_rate, channels, seconds: end as f64 / f64::from(sample_rate) })
}

/// The position in samples at the end of the last page that has one.
fn last_position(bytes: &[u8]) -> Option<u64> {
    let mut end = bytes.len();
    // A page is at most 65,307 bytes long, but the last packet may go over several.
    while let Some(place) = bytes[..end].windows(5).rposition(|window| window == b"OggS\0") {
        let position = Bytes(bytes).u64_little(place + 6);
        if position.is_some_and(|position| position != u64::MAX) {
            return position;
        }
        end = place;
    }
    None
}
