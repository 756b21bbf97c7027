//! H.264 without compression: macroblocks are stored as they are (I_PCM) or left as in the frame before (P_Skip).
//!
//! Every decoder of the standard's baseline must read this, and nothing is lost but what 4:2:0 loses. The price is
//! size: 1.5 bytes for each pixel that changed.

use super::bits::BitWriter;
use super::yuv::Planes;

/// The most frames from one that stands alone to the next, so that players can seek.
const KEY_INTERVAL: u32 = 48;
/// Frame numbers run up to here.
const FRAME_NUMBER_BITS: u32 = 16;

const SLICE: u8 = 0x41;
const KEY_SLICE: u8 = 0x65;
const SEQUENCE_PARAMETERS: u8 = 0x67;
const PICTURE_PARAMETERS: u8 = 0x68;

/// Encodes the frames of one film, in order.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    previous: Option<Planes>,
    /// Frames since the last one that stands alone.
    since_key: u32,
    keys: u32,
}

/// A frame as one NAL unit, without a length or start code in front.
pub(super) struct Frame {
    pub(super) nal: Vec<u8>,
    /// Whether it stands alone.
    pub(super) key: bool,
}

impl Encoder {
    /// Encodes the next frame; all must have one size.
    pub(super) fn frame(&mut self, planes: Planes) -> Frame {
        self.since_key += 1;
        let previous = self.previous.take().filter(|_| self.since_key < KEY_INTERVAL);
        let key = previous.is_none();
        if key {
            self.since_key = 0;
            self.keys = self.keys.wrapping_add(1);
        }
        let mut bits = BitWriter::default();
        bits.put(u32::from(if key { KEY_SLICE } else { SLICE }), 8);
        self.slice_header(&mut bits, key);
        macroblocks(&mut bits, &planes, previous.as_ref());
        self.previous = Some(planes);
        Frame { nal: close(bits), key }
    }

    fn slice_header(&self, bits: &mut BitWriter, key: bool) {
        unsigned(bits, 0);
        // All slices of the picture are of this type: I or P.
        unsigned(bits, if key { 7 } else { 5 });
        unsigned(bits, 0);
        bits.put(self.since_key, FRAME_NUMBER_BITS);
        if key {
            // Two key frames in a row must have different numbers; then: keep no old pictures for output.
            unsigned(bits, self.keys % 2);
            bits.put(0, 2);
        } else {
            // No other number of references, no other order of them, no marking of old ones.
            bits.put(0, 3);
        }
        signed(bits, 0);
        // No deblocking filter: it would blur what is exact.
        unsigned(bits, 1);
    }
}

fn macroblocks(bits: &mut BitWriter, planes: &Planes, previous: Option<&Planes>) {
    let mut skipped = 0;
    for row in 0..planes.rows {
        for column in 0..planes.columns {
            match previous {
                Some(previous) if planes.same_block(previous, column, row) => skipped += 1,
                Some(_) => {
                    unsigned(bits, skipped);
                    skipped = 0;
                    stored(bits, planes, column, row, 30);
                }
                None => stored(bits, planes, column, row, 25),
            }
        }
    }
    if skipped > 0 {
        unsigned(bits, skipped);
    }
}

/// A macroblock as plain samples; `kind` is the number of I_PCM in this type of slice.
fn stored(bits: &mut BitWriter, planes: &Planes, column: usize, row: usize, kind: u32) {
    unsigned(bits, kind);
    bits.align();
    for (plane, size) in [(&planes.luma, 16), (&planes.chroma[0], 8), (&planes.chroma[1], 8)] {
        for y in row * size..(row + 1) * size {
            let start = (y * planes.columns + column) * size;
            bits.bytes(&plane[start..start + size]);
        }
    }
}

/// The sequence parameter set for pictures of this size, which is cut to the even number of pixels at or above it.
pub(super) fn sequence_parameters(width: u32, height: u32) -> Vec<u8> {
    let (columns, rows) = (width.div_ceil(16), height.div_ceil(16));
    let mut bits = BitWriter::default();
    bits.put(u32::from(SEQUENCE_PARAMETERS), 8);
    let [profile, constraints, level] = profile(width, height);
    for byte in [profile, constraints, level] {
        bits.put(u32::from(byte), 8);
    }
    unsigned(&mut bits, 0);
    unsigned(&mut bits, FRAME_NUMBER_BITS - 4);
    // Pictures are shown in the order in which they are coded, with one of them to refer to and no gaps.
    unsigned(&mut bits, 2);
    unsigned(&mut bits, 1);
    bits.put(0, 1);
    unsigned(&mut bits, columns - 1);
    unsigned(&mut bits, rows - 1);
    // Whole frames only; direct_8x8_inference, as the profile demands.
    bits.put(0b11, 2);
    bits.put(1, 1);
    let cut = [0, (columns * 16 - width) / 2, 0, (rows * 16 - height) / 2];
    cut.into_iter().for_each(|cut| unsigned(&mut bits, cut));
    bits.put(1, 1);
    usability(&mut bits);
    close(bits)
}

/// Says that the colours are BT.601 in limited range, and that no picture has to wait for another.
fn usability(bits: &mut BitWriter) {
    bits.put(0b00, 2);
    // The kind of signal is unspecified, the range limited, the colours those of SMPTE 170M three times.
    bits.put(0b11_0101, 6);
    bits.put(0x06_06_06, 24);
    // No place of colour samples, no times, no buffers to keep; what follows is about order only.
    bits.put(0b00_0001, 6);
    bits.put(1, 1);
    for value in [0, 0, 16, 16, 0, 1] {
        unsigned(bits, value);
    }
}

/// The picture parameter set.
pub(super) fn picture_parameters() -> Vec<u8> {
    let mut bits = BitWriter::default();
    bits.put(u32::from(PICTURE_PARAMETERS), 8);
    unsigned(&mut bits, 0);
    unsigned(&mut bits, 0);
    // Codes of variable length; no fields.
    bits.put(0b00, 2);
    for _ in 0..3 {
        unsigned(&mut bits, 0);
    }
    // No weighted prediction.
    bits.put(0b000, 3);
    for _ in 0..3 {
        signed(&mut bits, 0);
    }
    // Slices say whether they want the deblocking filter.
    bits.put(0b100, 3);
    close(bits)
}

/// Profile, constraints and level: constrained baseline, at a level whose pictures are large enough.
pub(super) fn profile(width: u32, height: u32) -> [u8; 3] {
    let macroblocks = u64::from(width.div_ceil(16)) * u64::from(height.div_ceil(16));
    [66, 0xc0, if macroblocks <= 36_864 { 52 } else { 62 }]
}

/// An unsigned number in Exp-Golomb code.
fn unsigned(bits: &mut BitWriter, value: u32) {
    let length = (value + 1).ilog2();
    bits.put(0, length);
    bits.put(value + 1, length + 1);
}

/// A signed number in Exp-Golomb code.
fn signed(bits: &mut BitWriter, value: i32) {
    unsigned(bits, if value > 0 { 2 * value as u32 - 1 } else { 2 * value.unsigned_abs() });
}

/// Ends a NAL unit, and marks every place inside that looks like the start of the next.
fn close(mut bits: BitWriter) -> Vec<u8> {
    bits.put(1, 1);
    let raw = bits.finish();
    let mut out = Vec::with_capacity(raw.len() + 16);
    let mut zeros = 0;
    for byte in raw {
        if zeros >= 2 && byte <= 3 {
            out.push(3);
            zeros = 0;
        }
        zeros = if byte == 0 { zeros + 1 } else { 0 };
        out.push(byte);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::Image;
    use super::*;

    #[test]
    fn numbers_are_coded_as_the_standard_shows() {
        let mut bits = BitWriter::default();
        (0..4).for_each(|value| unsigned(&mut bits, value));
        signed(&mut bits, -1);
        signed(&mut bits, 2);
        // 1 010 011 00100 011 00100
        assert_eq!(bits.finish(), [0b1010_0110, 0b0100_0110, 0b0100_0000]);
    }

    #[test]
    fn start_codes_inside_are_marked() {
        let mut bits = BitWriter::default();
        bits.bytes(&[1, 0, 0, 0, 0, 0, 1, 0, 0, 4]);
        assert_eq!(close(bits), [1, 0, 0, 3, 0, 0, 3, 0, 1, 0, 0, 4, 0x80]);
    }

    #[test]
    fn unchanged_blocks_cost_nothing() {
        let mut encoder = Encoder::default();
        let mut image = Image::solid(64, 64, [10, 20, 30]);
        let first = encoder.frame(Planes::new(&image));
        assert!(first.key && first.nal.len() > 16 * 384);
        let same = encoder.frame(Planes::new(&image));
        assert!(!same.key && same.nal.len() < 10, "{}", same.nal.len());
        image.set_pixel(30, 30, [200; 3]);
        let changed = encoder.frame(Planes::new(&image));
        assert!((384..400).contains(&changed.nal.len()), "{}", changed.nal.len());
        let keys = (0..100).filter(|_| encoder.frame(Planes::new(&image)).key).count();
        assert_eq!(keys, 2);
    }
}
