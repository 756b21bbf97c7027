//! Brightness and colour difference planes, as video codecs want them.

use super::Image;

/// Three planes in 4:2:0, BT.601, limited range, filled up to whole macroblocks of 16x16.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planes {
    /// Macroblocks side by side.
    pub(super) columns: usize,
    /// Macroblocks one below the other.
    pub(super) rows: usize,
    /// Brightness, 16 bytes wide per macroblock.
    pub(super) luma: Vec<u8>,
    /// The two colour differences, 8 bytes wide per macroblock.
    pub(super) chroma: [Vec<u8>; 2],
}

impl Planes {
    /// A grey picture, to be overwritten.
    pub(super) fn grey(columns: usize, rows: usize) -> Self {
        let chroma = vec![128; columns * rows * 64];
        Self { columns, rows, luma: vec![128; columns * rows * 256], chroma: [chroma.clone(), chroma] }
    }

    /// Converts a picture; beyond its border the last pixel goes on.
    pub(super) fn new(image: &Image) -> Self {
        let (width, height) = (image.width() as usize, image.height() as usize);
        let mut planes = Self::grey(width.div_ceil(16), height.div_ceil(16));
        let (luma_stride, chroma_stride) = (planes.columns * 16, planes.columns * 8);
        let pixels = image.pixels();
        for y in 0..planes.rows * 8 {
            let upper = 3 * width * (2 * y).min(height - 1);
            let lower = 3 * width * (2 * y + 1).min(height - 1);
            let luma_row = 2 * y * luma_stride;
            let chroma_row = y * chroma_stride;
            for x in 0..chroma_stride {
                let left = 3 * (2 * x).min(width - 1);
                let right = 3 * (2 * x + 1).min(width - 1);
                // Written out, since tests encode without optimisation.
                let rgb = |at: usize| (pixels[at] as i32, pixels[at + 1] as i32, pixels[at + 2] as i32);
                let (a, b) = (rgb(upper + left), rgb(upper + right));
                let (c, d) = (rgb(lower + left), rgb(lower + right));
                let at = luma_row + 2 * x;
                planes.luma[at] = luma(a);
                planes.luma[at + 1] = luma(b);
                planes.luma[at + luma_stride] = luma(c);
                planes.luma[at + luma_stride + 1] = luma(d);
                let sums = (a.0 + b.0 + c.0 + d.0, a.1 + b.1 + c.1 + d.1, a.2 + b.2 + c.2 + d.2);
                let (blue, red) = chroma(sums);
                planes.chroma[0][chroma_row + x] = blue;
                planes.chroma[1][chroma_row + x] = red;
            }
        }
        planes
    }

    /// Whether a macroblock is the same in both pictures.
    pub(super) fn same_block(&self, other: &Self, column: usize, row: usize) -> bool {
        let same = |one: &[u8], other: &[u8], size: usize| {
            let stride = self.columns * size;
            (row * size..(row + 1) * size).all(|y| {
                let line = y * stride + column * size..y * stride + (column + 1) * size;
                one[line.clone()] == other[line]
            })
        };
        same(&self.luma, &other.luma, 16)
            && self.chroma.iter().zip(&other.chroma).all(|(one, other)| same(one, other, 8))
    }
}

fn luma((red, green, blue): (i32, i32, i32)) -> u8 {
    (((66 * red + 129 * green + 25 * blue + 128) >> 8) + 16) as u8
}

/// Both differences from the sums over four pixels.
fn chroma((red, green, blue): (i32, i32, i32)) -> (u8, u8) {
    let half = 512;
    (
        (((-38 * red - 74 * green + 112 * blue + half) >> 10) + 128) as u8,
        (((112 * red - 94 * green - 18 * blue + half) >> 10) + 128) as u8,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_colours_have_their_known_values() {
        for (rgb, yuv) in [
            ([0, 0, 0], [16, 128, 128]),
            ([255, 255, 255], [235, 128, 128]),
            ([255, 0, 0], [82, 90, 240]),
            ([0, 0, 255], [41, 240, 110]),
        ] {
            let planes = Planes::new(&Image::solid(17, 1, rgb));
            assert_eq!((planes.columns, planes.rows), (2, 1));
            assert!(planes.luma.iter().all(|&value| value == yuv[0]), "{rgb:?}: {}", planes.luma[0]);
            assert!(
                planes.chroma[0].iter().all(|&value| value == yuv[1]),
                "{rgb:?}: {}",
                planes.chroma[0][0]
            );
            assert!(
                planes.chroma[1].iter().all(|&value| value == yuv[2]),
                "{rgb:?}: {}",
                planes.chroma[1][0]
            );
        }
    }

    #[test]
    fn a_changed_pixel_changes_its_block_only() {
        let old = Image::solid(40, 40, [9; 3]);
        let mut new = old.clone();
        new.set_pixel(20, 5, [99; 3]);
        let (old, new) = (Planes::new(&old), Planes::new(&new));
        let changed: Vec<(usize, usize)> = (0..9)
            .map(|index| (index % 3, index / 3))
            .filter(|&(column, row)| !old.same_block(&new, column, row))
            .collect();
        assert_eq!(changed, [(1, 0)]);
    }
}
