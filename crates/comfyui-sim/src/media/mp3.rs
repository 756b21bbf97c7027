//! MP3 frames of silence.
//!
//! A real MP3 encoder is a project of its own. These files are as long as the sound they stand for, carry its
//! metadata and decode without a complaint, but nothing is to be heard in them.

use super::{Audio, EncodeError, tags};

const KILOBITS: u32 = 64;

/// An MP3 file of the length of `audio`, silent, with ID3v2 `TXXX` frames for `metadata`.
///
/// More than two channels become two, and a sample rate that MP3 does not have becomes the next one that it has.
pub fn encode(audio: &Audio, metadata: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
    let layout = Layout::new(audio);
    let length = (audio.seconds() * f64::from(layout.sample_rate)).round() as u64;
    // The delay of encoder and decoder, which players take off again.
    let (before, least_after) = (576, 529);
    let frames = (length + before + least_after).div_ceil(layout.samples);
    let after = frames * layout.samples - before - length;
    let frames = u32::try_from(frames).map_err(|_| EncodeError::Audio {
        format: "MP3",
        channels: audio.channels().len(),
        sample_rate: audio.sample_rate(),
    })?;

    let mut out = id3(metadata);
    let start = out.len();
    for number in 0..=frames {
        layout.frame(&mut out, number);
    }
    let bytes = (out.len() - start) as u32;
    let info = info(frames, bytes, before as u32, after as u32);
    let place = start + 4 + layout.side_info;
    out[place..place + info.len()].copy_from_slice(&info);
    Ok(out)
}

struct Layout {
    sample_rate: u32,
    /// Version, layer and "no checksum": the second byte of a frame.
    second_byte: u8,
    rate_index: u8,
    bit_rate_index: u8,
    mono: bool,
    /// Samples in a frame.
    samples: u64,
    /// Bytes between the header of a frame and its sound.
    side_info: usize,
}

impl Layout {
    fn new(audio: &Audio) -> Self {
        const RATES: [u32; 9] = [8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];
        let sample_rate = RATES.into_iter().find(|&rate| rate >= audio.sample_rate()).unwrap_or(48_000);
        let (second_byte, family) = match sample_rate {
            32_000.. => (0xfb, 1),
            16_000.. => (0xf3, 2),
            _ => (0xe3, 4),
        };
        let mono = audio.channels().len() == 1;
        Self {
            sample_rate,
            second_byte,
            rate_index: match sample_rate * family {
                44_100 => 0,
                48_000 => 1,
                _ => 2,
            },
            bit_rate_index: if family == 1 { 5 } else { 8 },
            mono,
            samples: if family == 1 { 1152 } else { 576 },
            side_info: match (family, mono) {
                (1, false) => 32,
                (1, true) | (_, false) => 17,
                (_, true) => 9,
            },
        }
    }

    /// A frame in which every band is empty.
    fn frame(&self, out: &mut Vec<u8>, number: u32) {
        // A frame has a whole number of bytes; now and then one more keeps the bit rate.
        let end = |frames: u64| {
            frames * self.samples / 8 * u64::from(KILOBITS * 1000) / u64::from(self.sample_rate)
        };
        let whole = self.samples / 8 * u64::from(KILOBITS * 1000) / u64::from(self.sample_rate);
        let size = end(u64::from(number) + 1) - end(u64::from(number));
        let padding = u8::from(size > whole);
        let third = (self.bit_rate_index << 4) | (self.rate_index << 2) | (padding << 1);
        let fourth = if self.mono { 0xc4 } else { 0x04 };
        out.extend([0xff, self.second_byte, third, fourth]);
        out.resize(out.len() + size as usize - 4, 0);
    }
}

/// What players read from the first frame: number of frames and bytes, and what to cut off at both ends.
fn info(frames: u32, bytes: u32, before: u32, after: u32) -> Vec<u8> {
    let mut out = b"Info\0\0\0\x03".to_vec();
    out.extend(frames.to_be_bytes());
    out.extend(bytes.to_be_bytes());
    // The extension that LAME began: its name, then twelve bytes about quality that nobody needs.
    out.extend(b"LAME     ");
    out.extend([0; 12]);
    out.extend(((before << 12) | after).to_be_bytes()[1..].iter());
    out.resize(52, 0);
    out
}

/// An ID3v2.4 tag with a text of its own name for each of `metadata`.
fn id3(metadata: &[(&str, &str)]) -> Vec<u8> {
    const UTF_8: u8 = 3;
    let mut frames = Vec::new();
    let mut frame = |name: &[u8; 4], text: &str| {
        // Sizes have 28 bits; what does not fit is left out.
        let size = text.len() + 1;
        if frames.len() + size + 10 < 1 << 28 {
            frames.extend(name);
            frames.extend(syncsafe(size as u32));
            frames.extend([0, 0, UTF_8]);
            frames.extend_from_slice(text.as_bytes());
        }
    };
    for (key, value) in metadata {
        frame(b"TXXX", &format!("{key}\0{value}"));
    }
    frame(b"TSSE", tags::VENDOR);
    let mut out = b"ID3\x04\0\0".to_vec();
    out.extend(syncsafe(frames.len() as u32));
    out.extend(frames);
    out
}

/// 28 bits in four bytes, none of which has its highest bit set.
fn syncsafe(value: u32) -> [u8; 4] {
    [21, 14, 7, 0].map(|shift| ((value >> shift) & 0x7f) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_rate_gets_frames_of_its_bit_rate() {
        for rate in [8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000] {
            for channels in [1, 2] {
                let file = encode(&Audio::silence(rate, channels, 10.0), &[]).unwrap();
                let bytes = f64::from(KILOBITS) * 1000.0 / 8.0 * 10.0;
                assert!((file.len() as f64 - bytes).abs() < 2000.0, "{rate} Hz: {}", file.len());
            }
        }
    }

    #[test]
    fn metadata_stand_in_front() {
        let file = encode(&Audio::silence(44_100, 1, 0.1), &[("prompt", "{\"ü\": 1}")]).unwrap();
        assert_eq!(file[..10], [b'I', b'D', b'3', 4, 0, 0, 0, 0, 0, 10 + 17 + 10 + 12]);
        assert!(file.windows(17).any(|window| window == "\u{3}prompt\0{\"ü\": 1}".as_bytes()));
    }
}
