//! Opus frames of silence, in Ogg.
//!
//! A real Opus encoder is a project of its own. These files are as long as the sound they stand for, carry its
//! metadata and decode without a complaint, but nothing is to be heard in them.

use super::{Audio, EncodeError, tags};

/// Opus always counts in 48,000 samples per second.
const RATE: u32 = 48_000;
/// Samples in a packet: 20 ms.
pub(super) const PACKET: u64 = 960;
/// Samples that a decoder takes off the beginning.
pub(super) const PRE_SKIP: u64 = 312;
const PACKETS_PER_PAGE: u64 = 50;

/// An Ogg file with an Opus stream of the length of `audio`, silent, with Vorbis comments for `metadata`.
///
/// More than two channels become two.
pub fn encode(audio: &Audio, metadata: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    let mut ogg = Ogg::default();
    ogg.packet(&mut out, &head(audio), 0);
    let mut comments = b"OpusTags".to_vec();
    comments.extend(tags::vorbis_comments(metadata, usize::MAX));
    ogg.packet(&mut out, &comments, 0);
    let (packets, end) = (packets(audio), length(audio) + PRE_SKIP);
    for first in (0..packets).step_by(PACKETS_PER_PAGE as usize) {
        let last = (first + PACKETS_PER_PAGE).min(packets);
        let count = (last - first) as usize;
        let data = silence(audio).repeat(count);
        let lacing = vec![silence(audio).len() as u8; count];
        let flags = if last == packets { Ogg::LAST } else { 0 };
        ogg.page(&mut out, &lacing, &data, flags, (last * PACKET).min(end));
    }
    Ok(out)
}

/// Length in samples of Opus.
fn length(audio: &Audio) -> u64 {
    (audio.seconds() * f64::from(RATE)).round() as u64
}

/// How many packets hold the sound and what is skipped before it.
pub(super) fn packets(audio: &Audio) -> u64 {
    (length(audio) + PRE_SKIP).div_ceil(PACKET).max(1)
}

/// One packet of 20 ms in which the coder says "silence" and nothing more.
pub(super) fn silence(audio: &Audio) -> [u8; 3] {
    [if channels(audio) == 1 { 0xf8 } else { 0xfc }, 0xff, 0xfe]
}

pub(super) fn channels(audio: &Audio) -> u8 {
    if audio.channels().len() == 1 { 1 } else { 2 }
}

/// The header that every container of Opus needs.
pub(super) fn head(audio: &Audio) -> Vec<u8> {
    let mut out = b"OpusHead\x01".to_vec();
    out.push(channels(audio));
    out.extend((PRE_SKIP as u16).to_le_bytes());
    out.extend(audio.sample_rate().to_le_bytes());
    // No gain; mono or stereo.
    out.extend([0; 3]);
    out
}

/// Writes pages of the one stream of a file.
#[derive(Default)]
struct Ogg {
    number: u32,
}

impl Ogg {
    const CONTINUED: u8 = 1;
    const FIRST: u8 = 2;
    const LAST: u8 = 4;

    /// A packet that has its pages for itself.
    fn packet(&mut self, out: &mut Vec<u8>, packet: &[u8], position: u64) {
        // A lacing value below 255 ends the packet, so one of exactly such a length needs a zero.
        let mut lacing = vec![255; packet.len() / 255];
        lacing.push((packet.len() % 255) as u8);
        let mut rest = packet;
        let pages = lacing.len().div_ceil(255);
        for (index, lacing) in lacing.chunks(255).enumerate() {
            let size = lacing.iter().map(|&length| usize::from(length)).sum();
            let (data, after) = rest.split_at(size);
            rest = after;
            let flags = if index > 0 { Self::CONTINUED } else { 0 };
            // On a page where no packet ends there is no position.
            let position = if index + 1 == pages { position } else { u64::MAX };
            self.page(out, lacing, data, flags, position);
        }
    }

    fn page(&mut self, out: &mut Vec<u8>, lacing: &[u8], data: &[u8], flags: u8, position: u64) {
        let start = out.len();
        out.extend(b"OggS\0");
        out.push(flags | if self.number == 0 { Self::FIRST } else { 0 });
        out.extend(position.to_le_bytes());
        out.extend(1u32.to_le_bytes());
        out.extend(self.number.to_le_bytes());
        let crc_at = out.len();
        out.extend([0; 4]);
        out.push(lacing.len() as u8);
        out.extend(lacing);
        out.extend(data);
        let crc = crc(&out[start..]);
        out[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
        self.number += 1;
    }
}

fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ CRC[usize::from((crc >> 24) as u8 ^ byte)])
}

/// Ogg's checksum runs from the highest bit down, unlike the one of PNG.
const CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc >> 31 == 0 { crc << 1 } else { (crc << 1) ^ 0x04c1_1db7 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_metadata_go_over_several_pages() {
        let long = "x".repeat(200_000);
        let file = encode(&Audio::silence(44_100, 2, 2.5), &[("prompt", &long)]).unwrap();
        let pages: Vec<usize> = (0..file.len()).filter(|&at| file[at..].starts_with(b"OggS\0")).collect();
        let flags: Vec<u8> = pages.iter().map(|&at| file[at + 5]).collect();
        assert_eq!(flags, [2, 0, 1, 1, 1, 0, 0, 4]);
        let last = *pages.last().unwrap();
        let position = u64::from_le_bytes(file[last + 6..last + 14].try_into().unwrap());
        assert_eq!(position, 120_000 + PRE_SKIP);
    }

    #[test]
    fn the_checksum_is_the_one_of_ogg() {
        assert_eq!(crc(b"123456789"), 0x89a1_897f);
    }
}
