//! Baseline JPEG, with half the resolution for colour (4:2:0) and the tables of the standard's Annex K.

use super::bits::BitWriter;
use super::{EncodeError, Image};

const LIMIT: u32 = 65_535;

/// A baseline JPEG file; `quality` from 1 to 100 as libjpeg counts it. Alpha is dropped.
pub fn encode(image: &Image, quality: u8) -> Result<Vec<u8>, EncodeError> {
    let (width, height) = (image.width(), image.height());
    if width > LIMIT || height > LIMIT {
        return Err(EncodeError::TooLarge { format: "JPEG", width, height, limit: LIMIT });
    }
    let tables = [scaled(&LUMA_QUANTA, quality), scaled(&CHROMA_QUANTA, quality)];
    let mut out = header(width as u16, height as u16, &tables);
    let mut scan = Scan::new(&tables);
    for top in (0..height).step_by(16) {
        for left in (0..width).step_by(16) {
            scan.unit(&Unit::read(image, left, top));
        }
    }
    scan.finish(&mut out);
    out.extend([0xff, 0xd9]);
    Ok(out)
}

fn header(width: u16, height: u16, tables: &[[u8; 64]; 2]) -> Vec<u8> {
    let mut out = vec![0xff, 0xd8];
    let mut segment = |marker: u8, data: &[u8]| {
        out.extend([0xff, marker]);
        out.extend((data.len() as u16 + 2).to_be_bytes());
        out.extend_from_slice(data);
    };
    segment(0xe0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0");
    for (number, table) in (0u8..).zip(tables) {
        let zigzag = ZIGZAG.iter().map(|&place| table[usize::from(place)]);
        segment(0xdb, &[number].into_iter().chain(zigzag).collect::<Vec<u8>>());
    }
    let ([h0, h1], [w0, w1]) = (height.to_be_bytes(), width.to_be_bytes());
    segment(0xc0, &[8, h0, h1, w0, w1, 3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1]);
    for (number, (counts, values)) in [0x00, 0x10, 0x01, 0x11].into_iter().zip(HUFFMAN) {
        segment(0xc4, &[&[number][..], counts, values].concat());
    }
    segment(0xda, &[3, 1, 0x00, 2, 0x11, 3, 0x11, 0, 63, 0]);
    out
}

/// A quantisation table as libjpeg scales it to a quality.
fn scaled(table: &[u8; 64], quality: u8) -> [u8; 64] {
    let quality = u32::from(quality.clamp(1, 100));
    let percent = if quality < 50 { 5000 / quality } else { 200 - 2 * quality };
    table.map(|quantum| ((u32::from(quantum) * percent + 50) / 100).clamp(1, 255) as u8)
}

/// One 16x16 piece of the picture: four blocks of brightness, one each of the two colour differences.
struct Unit {
    blocks: [[f32; 64]; 6],
}

impl Unit {
    fn read(image: &Image, left: u32, top: u32) -> Self {
        let mut blocks = [[0.0; 64]; 6];
        let (last_x, last_y) = (image.width() as usize - 1, image.height() as usize - 1);
        let (left, top, pixels) = (left as usize, top as usize, image.pixels());
        for y in 0..16 {
            // Beyond the border the last pixel goes on: it costs the fewest bits.
            let line = (top + y).min(last_y) * (last_x + 1);
            for x in 0..16 {
                let at = 3 * (line + (left + x).min(last_x));
                let (red, green, blue) = (pixels[at] as f32, pixels[at + 1] as f32, pixels[at + 2] as f32);
                let luma = 0.299 * red + 0.587 * green + 0.114 * blue;
                blocks[y / 8 * 2 + x / 8][y % 8 * 8 + x % 8] = luma - 128.0;
                let chroma = y / 2 * 8 + x / 2;
                blocks[4][chroma] += (blue - luma) / 1.772 / 4.0;
                blocks[5][chroma] += (red - luma) / 1.402 / 4.0;
            }
        }
        Self { blocks }
    }
}

/// The entropy-coded part.
struct Scan {
    bits: BitWriter,
    codes: [Vec<(u16, u8)>; 4],
    /// What to multiply a coefficient with, per kind.
    factors: [[f32; 64]; 2],
    /// The mean of the block before, per component.
    last_mean: [i32; 3],
}

impl Scan {
    fn new(tables: &[[u8; 64]; 2]) -> Self {
        let factors = [0, 1].map(|kind: usize| {
            std::array::from_fn(|place| {
                let aan = AAN_SCALES[place / 8] * AAN_SCALES[place % 8] * 8.0;
                1.0 / (f32::from(tables[kind][place]) * aan)
            })
        });
        let codes = HUFFMAN.map(|(counts, values)| huffman_codes(counts, values));
        Self { bits: BitWriter::default(), codes, factors, last_mean: [0; 3] }
    }

    fn unit(&mut self, unit: &Unit) {
        for (index, block) in unit.blocks.iter().enumerate() {
            let component = index.saturating_sub(3);
            let kind = usize::from(component > 0);
            let mut block = *block;
            transform(&mut block);
            let factors = &self.factors[kind];
            let levels =
                ZIGZAG.map(|place| (block[usize::from(place)] * factors[usize::from(place)]).round() as i32);
            self.block(&levels, component, kind);
        }
    }

    fn block(&mut self, levels: &[i32; 64], component: usize, kind: usize) {
        let difference = levels[0] - self.last_mean[component];
        self.last_mean[component] = levels[0];
        let (mean_codes, other_codes) = (2 * kind, 2 * kind + 1);
        self.symbol(mean_codes, 0, difference);
        let mut zeros = 0;
        for &level in &levels[1..] {
            if level == 0 {
                zeros += 1;
                continue;
            }
            while zeros > 15 {
                self.code(other_codes, 0xf0);
                zeros -= 16;
            }
            self.symbol(other_codes, zeros, level);
            zeros = 0;
        }
        if zeros > 0 {
            self.code(other_codes, 0);
        }
    }

    /// A number of zeros, then a value as its length in bits and these bits.
    fn symbol(&mut self, codes: usize, zeros: u8, value: i32) {
        let length = 32 - value.unsigned_abs().leading_zeros();
        self.code(codes, (zeros << 4) | length as u8);
        // Negative values are written as one less, so that the first bit tells the sign.
        let bits = if value < 0 { value - 1 } else { value };
        self.bits.put(bits as u32, length);
    }

    fn code(&mut self, codes: usize, symbol: u8) {
        let (code, length) = self.codes[codes][usize::from(symbol)];
        self.bits.put(u32::from(code), u32::from(length));
    }

    fn finish(mut self, out: &mut Vec<u8>) {
        // The last byte is filled up with ones, and 0xff in the data is told from a marker by a zero after it.
        self.bits.put(0x7f, 7);
        out.reserve(self.bits.whole().len() + 64);
        for &byte in self.bits.whole() {
            out.push(byte);
            if byte == 0xff {
                out.push(0);
            }
        }
    }
}

/// Code and length of every symbol.
fn huffman_codes(counts: &[u8; 16], values: &[u8]) -> Vec<(u16, u8)> {
    let mut codes = vec![(0, 0); 256];
    let (mut code, mut index) = (0u16, 0);
    for (length, &count) in (1u8..).zip(counts) {
        for &value in &values[index..index + usize::from(count)] {
            codes[usize::from(value)] = (code, length);
            code += 1;
        }
        index += usize::from(count);
        code <<= 1;
    }
    codes
}

/// The cosine transform of Arai, Agui and Nakajima: five multiplications per row, the rest is in `AAN_SCALES`.
fn transform(block: &mut [f32; 64]) {
    for row in 0..8 {
        transform_line(block, 8 * row, 1);
    }
    for column in 0..8 {
        transform_line(block, column, 8);
    }
}

fn transform_line(block: &mut [f32; 64], start: usize, step: usize) {
    let at = |index: usize| start + index * step;
    let pair = |a: usize, b: usize| (block[at(a)] + block[at(b)], block[at(a)] - block[at(b)]);
    let ((s0, d0), (s1, d1), (s2, d2), (s3, d3)) = (pair(0, 7), pair(1, 6), pair(2, 5), pair(3, 4));

    let (even0, even3) = (s0 + s3, s0 - s3);
    let (even1, even2) = (s1 + s2, s1 - s2);
    let turned = (even2 + even3) * std::f32::consts::FRAC_1_SQRT_2;
    block[at(0)] = even0 + even1;
    block[at(4)] = even0 - even1;
    block[at(2)] = even3 + turned;
    block[at(6)] = even3 - turned;

    let (odd0, odd1, odd2) = (d3 + d2, d2 + d1, d1 + d0);
    let shared = (odd0 - odd2) * 0.382_683_43;
    let low = 0.541_196_1 * odd0 + shared;
    let high = 1.306_563 * odd2 + shared;
    let middle = odd1 * std::f32::consts::FRAC_1_SQRT_2;
    let (plus, minus) = (d0 + middle, d0 - middle);
    block[at(5)] = minus + low;
    block[at(3)] = minus - low;
    block[at(1)] = plus + high;
    block[at(7)] = plus - high;
}

/// By how much `transform` leaves each row and column too large.
const AAN_SCALES: [f32; 8] =
    [1.0, 1.387_039_9, 1.306_563, 1.175_875_6, 1.0, 0.785_694_96, 0.541_196_1, 0.275_899_38];

const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

const LUMA_QUANTA: [u8; 64] = [
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17,
    22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78,
    87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
];

const CHROMA_QUANTA: [u8; 64] = [
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99, 47, 66,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
];

/// How many codes of each length, and what they mean: means and the rest of brightness, then of colour.
const HUFFMAN: [(&[u8; 16], &[u8]); 4] = [
    (&[0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    (
        &[0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7d],
        &[
            0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07,
            0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1, 0xf0,
            0x24, 0x33, 0x62, 0x72, 0x82, 0x09, 0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x25, 0x26, 0x27, 0x28,
            0x29, 0x2a, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49,
            0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69,
            0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89,
            0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7,
            0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5,
            0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2,
            0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8,
            0xf9, 0xfa,
        ],
    ),
    (&[0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    (
        &[0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77],
        &[
            0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71,
            0x13, 0x22, 0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33, 0x52, 0xf0,
            0x15, 0x62, 0x72, 0xd1, 0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17, 0x18, 0x19, 0x1a, 0x26,
            0x27, 0x28, 0x29, 0x2a, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
            0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68,
            0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87,
            0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5,
            0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3,
            0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda,
            0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8,
            0xf9, 0xfa,
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::super::{Card, card, decode};
    use super::*;

    #[test]
    fn the_picture_comes_back_nearly_the_same() {
        let prompt = "a lighthouse in a storm";
        let card =
            Card { width: 101, height: 83, title: "t", lines: &[], prompt, seed: 3, step: Some((1, 20)) };
        let image = card::draw(&card);
        let mean_error = |quality| {
            let decoded = decode::any(&encode(&image, quality).unwrap()).unwrap();
            assert_eq!((decoded.width(), decoded.height()), (101, 83));
            let errors = decoded.pixels().iter().zip(image.pixels()).map(|(a, b)| u64::from(a.abs_diff(*b)));
            errors.sum::<u64>() as f64 / image.pixels().len() as f64
        };
        assert!(mean_error(95) < 10.0, "{}", mean_error(95));
        assert!(mean_error(10) > mean_error(95));
    }

    #[test]
    fn flat_colours_are_exact_within_rounding() {
        for rgb in [[0, 0, 0], [255, 255, 255], [200, 30, 90], [0, 255, 0]] {
            let decoded = decode::any(&encode(&Image::solid(17, 5, rgb), 100).unwrap()).unwrap();
            assert!(
                decoded
                    .pixels()
                    .chunks(3)
                    .all(|pixel| pixel.iter().zip(rgb).all(|(a, b)| a.abs_diff(b) <= 2))
            );
        }
    }
}
