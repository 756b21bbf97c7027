//! Prediction and transformation of one macroblock of VP8, and what the decoder will make of it.

use super::tables::{MEAN_STEPS, OTHER_STEPS};
use crate::media::yuv::Planes;

/// Levels or samples of a 4x4 block, row by row.
pub(super) type Block = [i32; 16];

/// How a macroblock is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The mean of the neighbours.
    Mean,
    /// The row above, repeated.
    Vertical,
    /// The column to the left, repeated.
    Horizontal,
    /// Above plus left minus the corner: good for gradients.
    TrueMotion,
}

/// A macroblock in quantised levels.
pub(super) struct Macroblock {
    pub(super) luma_mode: Mode,
    pub(super) chroma_mode: Mode,
    /// The means of the sixteen blocks of brightness, transformed once more.
    pub(super) means: Block,
    /// The blocks of brightness; their first level is unused.
    pub(super) luma: [Block; 16],
    pub(super) chroma: [[Block; 4]; 2],
}

impl Macroblock {
    /// Whether all levels are zero.
    pub(super) fn is_empty(&self) -> bool {
        let blocks = self.luma.iter().chain(self.chroma.as_flattened()).chain([&self.means]);
        blocks.flatten().all(|&level| level == 0)
    }
}

/// The step of the mean and of all other coefficients, for each kind of block.
pub(super) struct Steps {
    luma: [i32; 2],
    means: [i32; 2],
    chroma: [i32; 2],
}

impl Steps {
    pub(super) fn new(quantiser: u8) -> Self {
        let quantiser = usize::from(quantiser.min(127));
        let (mean, other) = (MEAN_STEPS[quantiser], OTHER_STEPS[quantiser]);
        Self {
            luma: [mean, other],
            means: [2 * mean, (other * 155 / 100).max(8)],
            chroma: [mean.min(132), other],
        }
    }
}

/// Encodes a macroblock, and draws into `shown` what comes out of it.
pub(super) fn macroblock(
    wanted: &Planes,
    shown: &mut Planes,
    column: usize,
    row: usize,
    steps: &Steps,
) -> Macroblock {
    let stride = wanted.columns * 16;
    let luma = Square { size: 16, stride, column, row };
    let (luma_mode, predicted) = luma.best_mode(&[&wanted.luma], &[&shown.luma]);
    let predicted = &predicted[0];
    let mut coefficients: [Block; 16] =
        std::array::from_fn(|index| forward(&luma.difference(&wanted.luma, predicted, index % 4, index / 4)));
    let means = quantise(&forward_means(&coefficients.map(|block| block[0])), steps.means);
    let means_shown = inverse_means(&dequantise(&means, steps.means));
    for (index, block) in coefficients.iter_mut().enumerate() {
        block[0] = 0;
        *block = quantise(block, steps.luma);
        let mut back = dequantise(block, steps.luma);
        back[0] = means_shown[index];
        luma.draw(&mut shown.luma, predicted, &inverse(&back), index % 4, index / 4);
    }

    let square = Square { size: 8, stride: stride / 2, column, row };
    let [blue, red] = &wanted.chroma;
    let (chroma_mode, predicted) = square.best_mode(&[blue, red], &[&shown.chroma[0], &shown.chroma[1]]);
    let chroma = std::array::from_fn(|plane| {
        let predicted = &predicted[plane];
        std::array::from_fn(|index| {
            let (x, y) = (index % 2, index / 2);
            let block = forward(&square.difference(&wanted.chroma[plane], predicted, x, y));
            let levels = quantise(&block, steps.chroma);
            let back = inverse(&dequantise(&levels, steps.chroma));
            square.draw(&mut shown.chroma[plane], predicted, &back, x, y);
            levels
        })
    });
    Macroblock { luma_mode, chroma_mode, means, luma: coefficients, chroma }
}

/// The part of a plane that belongs to a macroblock.
struct Square {
    size: usize,
    stride: usize,
    column: usize,
    row: usize,
}

impl Square {
    fn start(&self) -> usize {
        self.row * self.size * self.stride + self.column * self.size
    }

    /// The mode that comes nearest to the wanted planes, and its prediction of each.
    fn best_mode(&self, wanted: &[&Vec<u8>], shown: &[&Vec<u8>]) -> (Mode, Vec<Vec<u8>>) {
        let predict = |mode| shown.iter().map(|shown| self.predict(shown, mode)).collect();
        let mut best: (Mode, Vec<Vec<u8>>) = (Mode::Mean, predict(Mode::Mean));
        let error = |predicted: &[Vec<u8>]| -> u32 {
            wanted.iter().zip(predicted).map(|(wanted, guess)| self.error(wanted, guess)).sum()
        };
        let mut least = error(&best.1);
        for &mode in self.other_modes() {
            let predicted: Vec<Vec<u8>> = predict(mode);
            let error = error(&predicted);
            if error < least {
                (least, best) = (error, (mode, predicted));
            }
        }
        best
    }

    /// The modes beside the mean that need no neighbour beyond the border of the picture.
    fn other_modes(&self) -> &'static [Mode] {
        match (self.column > 0, self.row > 0) {
            (false, false) => &[],
            (false, true) => &[Mode::Vertical],
            (true, false) => &[Mode::Horizontal],
            (true, true) => &[Mode::Vertical, Mode::Horizontal, Mode::TrueMotion],
        }
    }

    fn predict(&self, plane: &[u8], mode: Mode) -> Vec<u8> {
        let (size, start) = (self.size, self.start());
        let left = |y: usize| plane[start + y * self.stride - 1];
        let above = |plane: &[u8]| plane[start - self.stride..start - self.stride + size].to_vec();
        match mode {
            Mode::Mean => vec![self.mean(plane); size * size],
            Mode::Vertical => above(plane).repeat(size),
            Mode::Horizontal => (0..size).flat_map(|y| vec![left(y); size]).collect(),
            Mode::TrueMotion => {
                let above = above(plane);
                let corner = i32::from(plane[start - self.stride - 1]);
                let mut out = Vec::with_capacity(size * size);
                for y in 0..size {
                    let beside = i32::from(left(y)) - corner;
                    out.extend(above.iter().map(|above| (beside + i32::from(*above)).clamp(0, 255) as u8));
                }
                out
            }
        }
    }

    fn mean(&self, plane: &[u8]) -> u8 {
        let (size, start) = (self.size, self.start());
        let (mut sum, mut count) = (0, 0);
        if self.row > 0 {
            let above = &plane[start - self.stride..start - self.stride + size];
            sum += above.iter().map(|value| u32::from(*value)).sum::<u32>();
            count += size as u32;
        }
        if self.column > 0 {
            sum += (0..size).map(|y| u32::from(plane[start + y * self.stride - 1])).sum::<u32>();
            count += size as u32;
        }
        // Grey where there is no neighbour at all.
        (sum + count / 2).checked_div(count).unwrap_or(128) as u8
    }

    /// How far a prediction is off, measured in every fourth row.
    fn error(&self, wanted: &[u8], predicted: &[u8]) -> u32 {
        let start = self.start();
        let mut sum = 0;
        for y in (0..self.size).step_by(4) {
            let wanted = &wanted[start + y * self.stride..][..self.size];
            let predicted = &predicted[y * self.size..][..self.size];
            sum += wanted.iter().zip(predicted).map(|(a, b)| u32::from(a.abs_diff(*b))).sum::<u32>();
        }
        sum
    }

    fn difference(&self, wanted: &[u8], predicted: &[u8], x: usize, y: usize) -> Block {
        let start = self.start();
        std::array::from_fn(|at| {
            let (x, y) = (4 * x + at % 4, 4 * y + at / 4);
            i32::from(wanted[start + y * self.stride + x]) - i32::from(predicted[y * self.size + x])
        })
    }

    fn draw(&self, shown: &mut [u8], predicted: &[u8], residual: &Block, x: usize, y: usize) {
        let start = self.start();
        for (at, value) in residual.iter().enumerate() {
            let (x, y) = (4 * x + at % 4, 4 * y + at / 4);
            let sum = i32::from(predicted[y * self.size + x]) + value;
            shown[start + y * self.stride + x] = sum.clamp(0, 255) as u8;
        }
    }
}

fn quantise(block: &Block, [mean, other]: [i32; 2]) -> Block {
    std::array::from_fn(|index| {
        let step = if index == 0 { mean } else { other };
        // Rounding down a little more often than up saves more bits than it costs quality.
        let size = (block[index].abs() + step * 2 / 5) / step;
        size.min(2048) * block[index].signum()
    })
}

fn dequantise(levels: &Block, [mean, other]: [i32; 2]) -> Block {
    std::array::from_fn(|index| levels[index] * if index == 0 { mean } else { other })
}

/// Half of the product with the cosine basis from both sides, which `inverse` undoes.
fn forward(block: &Block) -> Block {
    // In units of 1/4096: the square root of 2 times cosine and sine of an eighth of a half turn.
    const COSINE: i32 = 5352;
    const SINE: i32 = 2217;
    let line = |a: i32, b: i32, c: i32, d: i32| {
        let (outer, inner) = (a - d, b - c);
        let [sum, difference] = [a + d + b + c, a + d - b - c].map(|value| value << 12);
        [sum, outer * COSINE + inner * SINE, difference, outer * SINE - inner * COSINE]
    };
    let mut half = [0; 16];
    for row in 0..4 {
        let at = 4 * row;
        let values = line(block[at], block[at + 1], block[at + 2], block[at + 3]);
        // Three bits are kept for the second pass.
        half[at..at + 4].copy_from_slice(&values.map(|value| (value + (1 << 8)) >> 9));
    }
    let mut out = [0; 16];
    for column in 0..4 {
        let values = line(half[column], half[column + 4], half[column + 8], half[column + 12]);
        for (row, value) in values.into_iter().enumerate() {
            out[4 * row + column] = (value + (1 << 15)) >> 16;
        }
    }
    out
}

/// Section 14.3, to the bit.
fn inverse(block: &Block) -> Block {
    if block.iter().all(|&value| value == 0) {
        return *block;
    }
    let sine = |value: i32| (value * 35_468) >> 16;
    let cosine = |value: i32| value + ((value * 20_091) >> 16);
    let line = |a: i32, b: i32, c: i32, d: i32| {
        let (sum, difference) = (a + c, a - c);
        let inner = sine(b) - cosine(d);
        let outer = cosine(b) + sine(d);
        [sum + outer, difference + inner, difference - inner, sum - outer]
    };
    let mut half = [0; 16];
    for column in 0..4 {
        let values = line(block[column], block[column + 4], block[column + 8], block[column + 12]);
        values.into_iter().enumerate().for_each(|(row, value)| half[4 * row + column] = value);
    }
    let mut out = [0; 16];
    for row in 0..4 {
        let at = 4 * row;
        let values = line(half[at], half[at + 1], half[at + 2], half[at + 3]);
        out[at..at + 4].copy_from_slice(&values.map(|value| (value + 4) >> 3));
    }
    out
}

/// One line of the Walsh-Hadamard transform: sums and differences only.
fn walsh([a, b, c, d]: [i32; 4]) -> [i32; 4] {
    [a + b + c + d, a + b - c - d, a - b - c + d, a - b + c - d]
}

fn walsh_both(block: &Block) -> Block {
    let mut half = [0; 16];
    for column in 0..4 {
        let values = walsh([block[column], block[column + 4], block[column + 8], block[column + 12]]);
        values.into_iter().enumerate().for_each(|(row, value)| half[4 * row + column] = value);
    }
    let mut out = [0; 16];
    for row in 0..4 {
        let at = 4 * row;
        out[at..at + 4].copy_from_slice(&walsh([half[at], half[at + 1], half[at + 2], half[at + 3]]));
    }
    out
}

fn forward_means(block: &Block) -> Block {
    walsh_both(block).map(|value| (value + 1) >> 1)
}

/// Section 14.3, to the bit. The transform is its own inverse but for the size.
fn inverse_means(block: &Block) -> Block {
    walsh_both(block).map(|value| (value + 3) >> 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transforms_undo_each_other() {
        let mut value = 7u32;
        for _ in 0..200 {
            let block: Block = std::array::from_fn(|_| {
                value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (value >> 24) as i32 - 128
            });
            for (back, name) in
                [(inverse(&forward(&block)), "cosine"), (inverse_means(&forward_means(&block)), "walsh")]
            {
                assert!(
                    back.iter().zip(block).all(|(a, b)| (a - b).abs() <= 1),
                    "{name}: {block:?} {back:?}"
                );
            }
        }
        assert_eq!(forward(&[10; 16])[0], 80);
    }
}
