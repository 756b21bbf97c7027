//! A key frame from its header to its last token.

use super::blocks::{self, Block, Mode};
use super::bool_coder::BoolEncoder;
use super::tables::{BANDS, CATEGORIES, TOKEN_PROBABILITIES, UPDATE_PROBABILITIES, ZIGZAG};
use crate::media::yuv::Planes;

/// How coarse the coefficients are, of 127: fine enough for text.
const QUANTISER: u8 = 16;

/// Encodes one picture as a key frame that shows `width` by `height` of it, both below 16,384.
pub(in crate::media) fn key_frame(planes: &Planes, width: u16, height: u16) -> Vec<u8> {
    let steps = blocks::Steps::new(QUANTISER);
    let mut shown = Planes::grey(planes.columns, planes.rows);
    let mut above = vec![Edge::default(); planes.columns];
    let (mut modes, mut tokens) = (BoolEncoder::default(), BoolEncoder::default());
    header(&mut modes);
    for row in 0..planes.rows {
        let mut left = Edge::default();
        for (column, above) in above.iter_mut().enumerate() {
            let coded = blocks::macroblock(planes, &mut shown, column, row, &steps);
            let empty = coded.is_empty();
            modes.put(empty, SKIP_PROBABILITY);
            luma_mode(&mut modes, coded.luma_mode);
            chroma_mode(&mut modes, coded.chroma_mode);
            if empty {
                (left, *above) = (Edge::default(), Edge::default());
            } else {
                residuals(&mut tokens, &coded, &mut left, above);
            }
        }
    }
    let (modes, tokens) = (modes.finish(), tokens.finish());
    // A key frame that is shown, of version 0, and the size of the first part.
    let tag = (modes.len() as u32) << 5 | 1 << 4;
    let mut out = Vec::with_capacity(10 + modes.len() + tokens.len());
    out.extend(&tag.to_le_bytes()[..3]);
    out.extend([0x9d, 0x01, 0x2a]);
    out.extend(width.to_le_bytes());
    out.extend(height.to_le_bytes());
    out.extend(modes);
    out.extend(tokens);
    out
}

/// With which probability, of 256, a macroblock is not empty.
const SKIP_PROBABILITY: u8 = 200;

fn header(out: &mut BoolEncoder) {
    // Colour space, clamping, no segments.
    out.literal(0, 3);
    // The simple filter, at level 0, sharpness 0, without adjustments.
    out.literal(0, 1 + 6 + 3 + 1);
    // One part of tokens.
    out.literal(0, 2);
    out.literal(u32::from(QUANTISER), 7);
    // No deviations for five kinds of coefficients.
    out.literal(0, 5);
    // Probabilities that change would be kept, but none does.
    out.literal(1, 1);
    UPDATE_PROBABILITIES
        .as_flattened()
        .as_flattened()
        .as_flattened()
        .iter()
        .for_each(|&kept| out.put(false, kept));
    // Macroblocks say whether they are empty.
    out.literal(1, 1);
    out.literal(u32::from(SKIP_PROBABILITY), 8);
}

fn luma_mode(out: &mut BoolEncoder, mode: Mode) {
    // Not sixteen modes for sixteen blocks.
    out.put(true, 145);
    let (second, third, probability) = match mode {
        Mode::Mean => (false, false, 163),
        Mode::Vertical => (false, true, 163),
        Mode::Horizontal => (true, false, 128),
        Mode::TrueMotion => (true, true, 128),
    };
    out.put(second, 156);
    out.put(third, probability);
}

fn chroma_mode(out: &mut BoolEncoder, mode: Mode) {
    out.put(mode != Mode::Mean, 142);
    if mode != Mode::Mean {
        out.put(mode != Mode::Vertical, 114);
        if mode != Mode::Vertical {
            out.put(mode != Mode::Horizontal, 183);
        }
    }
}

/// Which blocks at the border of a macroblock had coefficients: those below and to the right expect as much.
#[derive(Debug, Clone, Copy, Default)]
struct Edge {
    means: bool,
    luma: [bool; 4],
    chroma: [[bool; 2]; 2],
}

fn residuals(out: &mut BoolEncoder, coded: &blocks::Macroblock, left: &mut Edge, above: &mut Edge) {
    const LUMA: usize = 0;
    const MEANS: usize = 1;
    const CHROMA: usize = 2;
    let some = block(out, &coded.means, MEANS, 0, u8::from(left.means) + u8::from(above.means));
    (left.means, above.means) = (some, some);
    for (index, luma) in coded.luma.iter().enumerate() {
        let (left, above) = (&mut left.luma[index / 4], &mut above.luma[index % 4]);
        // Their means stand in the block before.
        let some = block(out, luma, LUMA, 1, u8::from(*left) + u8::from(*above));
        (*left, *above) = (some, some);
    }
    for (plane, chroma) in coded.chroma.iter().enumerate() {
        for (index, chroma) in chroma.iter().enumerate() {
            let (left, above) = (&mut left.chroma[plane][index / 2], &mut above.chroma[plane][index % 2]);
            let some = block(out, chroma, CHROMA, 0, u8::from(*left) + u8::from(*above));
            (*left, *above) = (some, some);
        }
    }
}

/// Codes the levels of a block from `first` on, and tells whether there were any.
fn block(out: &mut BoolEncoder, levels: &Block, kind: usize, first: usize, context: u8) -> bool {
    let ordered = ZIGZAG.map(|place| levels[place]);
    let end = ordered.iter().rposition(|&level| level != 0).map_or(0, |last| last + 1);
    let mut context = usize::from(context);
    let mut after_zero = false;
    for place in first..16 {
        let tree = &TOKEN_PROBABILITIES[kind][BANDS[place]][context];
        // After a zero the end cannot come, so it is not asked for.
        if !after_zero {
            out.put(place < end, tree[0]);
        }
        if place >= end {
            break;
        }
        token(out, tree, ordered[place]);
        context = ordered[place].unsigned_abs().min(2) as usize;
        after_zero = context == 0;
    }
    end > first
}

fn token(out: &mut BoolEncoder, tree: &[u8; 11], level: i32) {
    let size = level.unsigned_abs();
    out.put(size > 0, tree[1]);
    if size == 0 {
        return;
    }
    out.put(size > 1, tree[2]);
    if size > 1 {
        out.put(size > 4, tree[3]);
        if size > 4 {
            category(out, tree, size);
        } else {
            out.put(size > 2, tree[4]);
            if size > 2 {
                out.put(size > 3, tree[5]);
            }
        }
    }
    out.put(level < 0, 128);
}

fn category(out: &mut BoolEncoder, tree: &[u8; 11], size: u32) {
    let index = CATEGORIES.iter().rposition(|(first, _)| size >= *first).unwrap_or(0);
    out.put(index > 1, tree[6]);
    match index {
        0 | 1 => out.put(index == 1, tree[7]),
        _ => {
            out.put(index > 3, tree[8]);
            out.put(index % 2 == 1, tree[if index > 3 { 10 } else { 9 }]);
        }
    }
    let (first, probabilities) = CATEGORIES[index];
    for (bit, &probability) in (0..probabilities.len()).rev().zip(probabilities) {
        out.put((size - first) >> bit & 1 == 1, probability);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::{Card, Image, card, decode};

    /// A lossy WebP file is nothing but a key frame in an envelope.
    fn decoded(image: &Image) -> Image {
        let mut frame = key_frame(&Planes::new(image), image.width() as u16, image.height() as u16);
        let length = frame.len() as u32;
        frame.resize(frame.len().next_multiple_of(2), 0);
        let mut file = b"RIFF".to_vec();
        file.extend((frame.len() as u32 + 12).to_le_bytes());
        file.extend(b"WEBPVP8 ");
        file.extend(length.to_le_bytes());
        file.extend(frame);
        decode::any(&file).unwrap()
    }

    #[test]
    fn pictures_come_back_nearly_the_same() {
        for (width, height) in [(16, 16), (160, 96), (101, 83), (1, 1)] {
            let prompt = "a lighthouse in a storm";
            let step = Some((5, 20));
            let image = card::draw(&Card { width, height, title: "t", lines: &[], prompt, seed: 3, step });
            let decoded = decoded(&image);
            assert_eq!((decoded.width(), decoded.height()), (width, height));
            let errors = decoded.pixels().iter().zip(image.pixels()).map(|(a, b)| u64::from(a.abs_diff(*b)));
            let mean = errors.sum::<u64>() as f64 / image.pixels().len() as f64;
            assert!(mean < 9.0, "{width}x{height}: {mean}");
        }
    }

    #[test]
    fn flat_and_extreme_pictures_are_exact_within_rounding() {
        for rgb in [[0, 0, 0], [255, 255, 255], [128, 128, 128], [200, 30, 90]] {
            let decoded = decoded(&Image::solid(40, 24, rgb));
            assert!(
                decoded
                    .pixels()
                    .chunks(3)
                    .all(|pixel| pixel.iter().zip(rgb).all(|(a, b)| a.abs_diff(b) <= 4))
            );
        }
        // Large coefficients of every category.
        let checkers: Vec<u8> =
            (0..32 * 32).map(|index| if (index + index / 32) % 2 == 0 { 0 } else { 255 }).collect();
        let checkers = Image::from_grey(32, 32, &checkers).unwrap();
        let far = decoded(&checkers)
            .pixels()
            .iter()
            .zip(checkers.pixels())
            .filter(|(a, b)| a.abs_diff(**b) > 24)
            .count();
        assert_eq!(far, 0);
    }
}
