//! FLAC: fixed predictors and Rice codes, 16 bits.

use super::audio::to_i16;
use super::bits::BitWriter;
use super::{Audio, EncodeError, tags};
use md5::Digest;

/// Samples per channel in a frame.
pub(super) const BLOCK: usize = 4096;

/// A FLAC file of 16 bit samples, with Vorbis comments for `metadata`.
pub fn encode(audio: &Audio, metadata: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
    let stream = Stream::new(audio)?;
    let comments = tags::vorbis_comments(metadata, (1 << 24) - 1);
    let mut out = b"fLaC".to_vec();
    out.extend([0, 0, 0, 34]);
    out.extend(stream.info);
    // Kind 4, and the mark of the last block.
    out.extend((0x8400_0000 | comments.len() as u32).to_be_bytes());
    out.extend(comments);
    out.reserve(stream.frames.iter().map(Vec::len).sum());
    stream.frames.iter().for_each(|frame| out.extend(frame));
    Ok(out)
}

/// The parts of a stream, for this file format and for others that can carry it.
pub(super) struct Stream {
    /// The STREAMINFO block without its header.
    pub(super) info: [u8; 34],
    /// Each holds [`BLOCK`] samples per channel, the last one perhaps fewer.
    pub(super) frames: Vec<Vec<u8>>,
}

impl Stream {
    pub(super) fn new(audio: &Audio) -> Result<Self, EncodeError> {
        let (channels, sample_rate) = (audio.channels().len(), audio.sample_rate());
        if channels > 8 || sample_rate >= 1 << 20 {
            return Err(EncodeError::Audio { format: "FLAC", channels, sample_rate });
        }
        let frames: Vec<Vec<u8>> =
            (0..audio.len().div_ceil(BLOCK)).map(|number| frame(audio, number)).collect();
        let info = stream_info(audio, &frames);
        Ok(Self { info, frames })
    }
}

fn stream_info(audio: &Audio, frames: &[Vec<u8>]) -> [u8; 34] {
    let mut hash = md5::Md5::new();
    let mut buffer = Vec::with_capacity(1 << 12);
    for sample in audio.interleaved_i16() {
        buffer.extend(sample.to_le_bytes());
        if buffer.len() >= 1 << 12 {
            hash.update(&buffer);
            buffer.clear();
        }
    }
    hash.update(&buffer);
    let mut bits = BitWriter::default();
    bits.put(BLOCK as u32, 16);
    bits.put(BLOCK as u32, 16);
    bits.put(frames.iter().map(Vec::len).min().unwrap_or(0) as u32, 24);
    bits.put(frames.iter().map(Vec::len).max().unwrap_or(0) as u32, 24);
    bits.put(audio.sample_rate(), 20);
    bits.put(audio.channels().len() as u32 - 1, 3);
    bits.put(15, 5);
    let total = audio.len() as u64;
    bits.put((total >> 32) as u32, 4);
    bits.put(total as u32, 32);
    let mut info = [0; 34];
    info[..18].copy_from_slice(&bits.finish());
    info[18..].copy_from_slice(&hash.finalize());
    info
}

fn frame(audio: &Audio, number: usize) -> Vec<u8> {
    let start = number * BLOCK;
    let length = BLOCK.min(audio.len() - start);
    let mut bits = BitWriter::default();
    // A frame of fixed size; its number follows.
    bits.put(0xfff8, 16);
    bits.put(if length == BLOCK { 12 } else { 7 }, 4);
    let (rate_code, rate, rate_bits) = rate_code(audio.sample_rate());
    bits.put(rate_code, 4);
    bits.put(audio.channels().len() as u32 - 1, 4);
    bits.put(0b1000, 4);
    utf8_number(&mut bits, number as u32);
    if length < BLOCK {
        bits.put(length as u32 - 1, 16);
    }
    bits.put(rate, rate_bits);
    bits.put(u32::from(crc8(bits.whole())), 8);
    for channel in audio.channels() {
        let samples: Vec<i32> =
            channel[start..start + length].iter().map(|&value| i32::from(to_i16(value))).collect();
        subframe(&mut bits, &samples);
    }
    bits.align();
    let crc = crc16(bits.whole());
    bits.put(u32::from(crc), 16);
    bits.finish()
}

/// How a frame names the sample rate: a code, and with some a number of this many bits later in the header.
///
/// The decoder could be sent to STREAMINFO, but then ffmpeg reports a rate of 0.
fn rate_code(rate: u32) -> (u32, u32, u32) {
    const NAMED: [u32; 11] =
        [88_200, 176_400, 192_000, 8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000];
    match (1..).zip(NAMED).find(|(_, named)| *named == rate) {
        Some((code, _)) => (code, 0, 0),
        None if rate < 1 << 16 => (13, rate, 16),
        None if rate.is_multiple_of(10) && rate / 10 < 1 << 16 => (14, rate / 10, 16),
        None => (0, 0, 0),
    }
}

/// The number of a frame, coded as UTF-8 codes characters but up to 31 bits.
fn utf8_number(bits: &mut BitWriter, number: u32) {
    if number < 0x80 {
        return bits.put(number, 8);
    }
    let length = 32 - number.leading_zeros();
    // Each byte after the first has 6 bits, the first one less the more follow.
    let more = (1..6).find(|more| length <= 6 - more + 6 * more).unwrap_or(5);
    let ones = (0xff00 >> (more + 1)) & 0xff;
    bits.put(ones | (number >> (6 * more)), 8);
    for index in (0..more).rev() {
        bits.put(0x80 | ((number >> (6 * index)) & 0x3f), 8);
    }
}

/// How a run of residuals is cut up, and the parameter of each part.
const PARTITION: usize = 256;
const MOST_RICE: u32 = 14;

fn subframe(bits: &mut BitWriter, samples: &[i32]) {
    if samples.iter().all(|sample| *sample == samples[0]) {
        bits.put(0b0000_0000, 8);
        return bits.put(samples[0] as u32, 16);
    }
    let (order, residuals) = best_prediction(samples);
    let cut = samples.len().is_multiple_of(PARTITION) && (samples.len() / PARTITION).is_power_of_two();
    let size = if cut { PARTITION } else { samples.len() };
    // The first part is shorter by the samples that are written as they are.
    let head = size - order;
    let parts: Vec<&[i32]> = [&residuals[..head]].into_iter().chain(residuals[head..].chunks(size)).collect();
    let rice: Vec<u32> = parts.iter().map(|part| rice_parameter(part)).collect();
    let cost: u64 = parts.iter().zip(&rice).map(|(part, &rice)| rice_cost(part, rice)).sum();
    if cost + 16 * order as u64 >= 16 * samples.len() as u64 {
        bits.put(0b0000_0010, 8);
        return samples.iter().for_each(|&sample| bits.put(sample as u32, 16));
    }
    bits.put(0b0001_0000 | (order as u32) << 1, 8);
    samples[..order].iter().for_each(|&sample| bits.put(sample as u32, 16));
    bits.put(0, 2);
    bits.put(parts.len().trailing_zeros(), 4);
    for (part, rice) in parts.into_iter().zip(rice) {
        bits.put(rice, 4);
        for &residual in part {
            let folded = fold(residual);
            (0..(folded >> rice) / 32).for_each(|_| bits.put(0, 32));
            bits.put(0, (folded >> rice) % 32);
            bits.put(1, 1);
            bits.put(folded, rice);
        }
    }
}

/// The order of the difference whose values are smallest, and these values.
fn best_prediction(samples: &[i32]) -> (usize, Vec<i32>) {
    let size = |values: &[i32]| values.iter().map(|value| u64::from(value.unsigned_abs())).sum::<u64>();
    let mut best = (0, samples.to_vec());
    let mut differences = samples.to_vec();
    for order in 1..=4.min(samples.len() - 1) {
        differences = differences.windows(2).map(|pair| pair[1] - pair[0]).collect();
        if size(&differences) < size(&best.1) {
            best = (order, differences.clone());
        }
    }
    best
}

/// Positive numbers become even ones, negative numbers odd ones.
fn fold(value: i32) -> u32 {
    ((value << 1) ^ (value >> 31)) as u32
}

fn rice_parameter(part: &[i32]) -> u32 {
    let sum: u64 = part.iter().map(|&value| u64::from(fold(value))).sum();
    let mean = sum / (part.len() as u64).max(1);
    mean.max(1).ilog2().min(MOST_RICE)
}

fn rice_cost(part: &[i32], rice: u32) -> u64 {
    part.iter().map(|&value| u64::from((fold(value) >> rice) + 1 + rice)).sum::<u64>() + 4
}

fn crc8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ byte, |crc, _| if crc & 0x80 == 0 { crc << 1 } else { (crc << 1) ^ 0x07 })
    })
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x8005 };
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
    fn frame_numbers_look_like_characters() {
        for number in [0, 0x7f, 0x80, 0x7ff, 0x800, 0xffff, 0x1_0000, 0x10_ffff] {
            if let Some(character) = char::from_u32(number) {
                let mut bits = BitWriter::default();
                utf8_number(&mut bits, number);
                assert_eq!(bits.finish(), character.to_string().into_bytes(), "{number:#x}");
            }
        }
        let mut bits = BitWriter::default();
        utf8_number(&mut bits, 0x7fff_ffff);
        assert_eq!(bits.finish(), [0xfd, 0xbf, 0xbf, 0xbf, 0xbf, 0xbf]);
    }

    #[test]
    fn checksums_are_the_ones_of_the_standard() {
        assert_eq!(crc8(b"123456789"), 0xf4);
        assert_eq!(crc16(b"123456789"), 0xfee8);
    }

    #[test]
    fn silence_and_tones_are_small() {
        let silent = encode(&Audio::silence(44_100, 2, 10.0), &[("prompt", "{}")]).unwrap();
        assert!(silent.len() < 3000, "{}", silent.len());
        let tone = encode(&Audio::sine(44_100, 1, 1.0, 440.0), &[]).unwrap();
        assert!(tone.len() < 44_100, "{}", tone.len());
        assert_eq!(silent[..8], *b"fLaC\0\0\0\x22");
        assert!(silent.windows(9).any(|window| window == b"prompt={}"));
    }
}
