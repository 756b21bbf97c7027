//! The picture that everything here draws on, encodes and decodes.

/// An RGB picture of 8 bits per channel, perhaps with an alpha channel.
///
/// Invariant: width and height are at least 1, `pixels` holds `3 * width * height` bytes row by row, and
/// `alpha`, if there, `width * height`. Hence private fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
    alpha: Option<Vec<u8>>,
}

/// One channel of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Red.
    Red,
    /// Green.
    Green,
    /// Blue.
    Blue,
    /// Alpha; 255 everywhere in a picture without one.
    Alpha,
}

/// How [`Image::scale`] finds the value of a new pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// The nearest old pixel, by pixel centres.
    NearestExact,
    /// Mixed from the four nearest old pixels.
    Bilinear,
}

impl Scaling {
    /// The method that ComfyUI calls `name`. Its bicubic, area and lanczos are approximated by bilinear.
    pub fn from_name(name: &str) -> Self {
        if name.starts_with("nearest") { Self::NearestExact } else { Self::Bilinear }
    }
}

impl Image {
    /// A picture of one colour. A side of 0 counts as 1.
    pub fn solid(width: u32, height: u32, rgb: [u8; 3]) -> Self {
        let (width, height) = (width.max(1), height.max(1));
        let pixels = rgb.repeat(area(width, height));
        Self { width, height, pixels, alpha: None }
    }

    /// A picture from its pixels, row by row, three bytes each. `None` if their number does not fit the size.
    pub fn from_rgb(width: u32, height: u32, pixels: Vec<u8>) -> Option<Self> {
        let fits = width > 0 && height > 0 && area(width, height).checked_mul(3) == Some(pixels.len());
        fits.then_some(Self { width, height, pixels, alpha: None })
    }

    /// A grey picture from one byte per pixel. `None` if their number does not fit the size.
    pub fn from_grey(width: u32, height: u32, values: &[u8]) -> Option<Self> {
        Self::from_rgb(width, height, values.iter().flat_map(|&value| [value; 3]).collect())
    }

    /// The same picture with this alpha channel, one byte per pixel. `None` if their number does not fit.
    pub fn with_alpha(self, alpha: Vec<u8>) -> Option<Self> {
        (alpha.len() == area(self.width, self.height)).then_some(Self { alpha: Some(alpha), ..self })
    }

    /// The same picture without its alpha channel.
    pub fn without_alpha(self) -> Self {
        Self { alpha: None, ..self }
    }

    /// Width in pixels, at least 1.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Height in pixels, at least 1.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// All pixels row by row, three bytes each.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The alpha channel row by row, if there is one.
    pub fn alpha(&self) -> Option<&[u8]> {
        self.alpha.as_deref()
    }

    /// The colour at a place inside the picture; black outside.
    pub fn pixel(&self, x: u32, y: u32) -> [u8; 3] {
        if x >= self.width || y >= self.height {
            return [0; 3];
        }
        let at = 3 * (y as usize * self.width as usize + x as usize);
        [self.pixels[at], self.pixels[at + 1], self.pixels[at + 2]]
    }

    /// Colours one pixel; places outside the picture are ignored.
    pub fn set_pixel(&mut self, x: u32, y: u32, rgb: [u8; 3]) {
        if x < self.width && y < self.height {
            let at = 3 * (y as usize * self.width as usize + x as usize);
            self.pixels[at..at + 3].copy_from_slice(&rgb);
        }
    }

    /// The bytes of a row from column `left` up to, without it, `right`; empty outside the picture.
    pub(super) fn row_mut(&mut self, y: u32, left: u32, right: u32) -> &mut [u8] {
        let right = right.min(self.width);
        if y >= self.height || left >= right {
            return &mut [];
        }
        let start = y as usize * self.width as usize;
        &mut self.pixels[3 * (start + left as usize)..3 * (start + right as usize)]
    }

    /// The negative. Alpha stays as it is.
    pub fn invert(&self) -> Self {
        let pixels = self.pixels.iter().map(|value| 255 - value).collect();
        Self { pixels, alpha: self.alpha.clone(), ..*self }
    }

    /// One channel as a grey picture.
    pub fn channel(&self, channel: Channel) -> Self {
        let offset = match channel {
            Channel::Red => 0,
            Channel::Green => 1,
            Channel::Blue => 2,
            Channel::Alpha => {
                let pixels = match &self.alpha {
                    Some(alpha) => alpha.iter().flat_map(|&value| [value; 3]).collect(),
                    None => vec![255; self.pixels.len()],
                };
                return Self { pixels, alpha: None, ..*self };
            }
        };
        let pixels = self.pixels.chunks_exact(3).flat_map(|rgb| [rgb[offset]; 3]).collect();
        Self { pixels, alpha: None, ..*self }
    }

    /// The same picture in another size. A side of 0 counts as 1.
    pub fn scale(&self, width: u32, height: u32, method: Scaling) -> Self {
        let (width, height) = (width.max(1), height.max(1));
        if (width, height) == (self.width, self.height) {
            return self.clone();
        }
        let from = (self.width, self.height);
        let pixels = scale_plane(&self.pixels, 3, from, (width, height), method);
        let alpha = self.alpha.as_ref().map(|alpha| scale_plane(alpha, 1, from, (width, height), method));
        Self { width, height, pixels, alpha }
    }

    /// The largest middle part with the proportions of `width` to `height`, as ComfyUI's `crop: center` cuts it
    /// before scaling.
    pub fn crop_center(&self, width: u32, height: u32) -> Self {
        let (have_w, have_h) = (f64::from(self.width), f64::from(self.height));
        let (old, new) = (have_w / have_h, f64::from(width.max(1)) / f64::from(height.max(1)));
        let (mut left, mut top) = (0, 0);
        if old > new {
            left = ((have_w - have_w * (new / old)) / 2.0).round() as u32;
        } else if old < new {
            top = ((have_h - have_h * (old / new)) / 2.0).round() as u32;
        }
        let (width, height) = (self.width.saturating_sub(2 * left), self.height.saturating_sub(2 * top));
        self.crop(left, top, width, height)
    }

    /// A part of the picture, clipped to what is there and at least one pixel large.
    pub fn crop(&self, left: u32, top: u32, width: u32, height: u32) -> Self {
        let (left, top) = (left.min(self.width - 1), top.min(self.height - 1));
        let (width, height) = (width.clamp(1, self.width - left), height.clamp(1, self.height - top));
        let cut = |plane: &[u8], channels: usize| {
            let mut out = Vec::with_capacity(area(width, height) * channels);
            for y in top..top + height {
                let start = (y as usize * self.width as usize + left as usize) * channels;
                out.extend_from_slice(&plane[start..start + width as usize * channels]);
            }
            out
        };
        let (pixels, alpha) = (cut(&self.pixels, 3), self.alpha.as_ref().map(|alpha| cut(alpha, 1)));
        Self { width, height, pixels, alpha }
    }
}

fn area(width: u32, height: u32) -> usize {
    width as usize * height as usize
}

/// Where one new column or row comes from: two old ones and the weight of the second, of 256.
struct Source {
    first: usize,
    second: usize,
    weight: u32,
}

fn sources(from: u32, to: u32, method: Scaling) -> Vec<Source> {
    let ratio = f64::from(from) / f64::from(to);
    let last = from as usize - 1;
    (0..to)
        .map(|index| {
            let centre = (f64::from(index) + 0.5) * ratio;
            match method {
                Scaling::NearestExact => {
                    let first = (centre as usize).min(last);
                    Source { first, second: first, weight: 0 }
                }
                Scaling::Bilinear => {
                    let place = (centre - 0.5).max(0.0);
                    let first = (place as usize).min(last);
                    let weight = ((place - first as f64) * 256.0).round() as u32;
                    Source { first, second: (first + 1).min(last), weight: weight.min(256) }
                }
            }
        })
        .collect()
}

fn scale_plane(plane: &[u8], channels: usize, from: (u32, u32), to: (u32, u32), method: Scaling) -> Vec<u8> {
    let columns = sources(from.0, to.0, method);
    let rows = sources(from.1, to.1, method);
    let stride = from.0 as usize * channels;
    let mut out = Vec::with_capacity(area(to.0, to.1) * channels);
    for row in &rows {
        let (upper, lower) = (&plane[row.first * stride..], &plane[row.second * stride..]);
        for column in &columns {
            for channel in 0..channels {
                let (left, right) = (column.first * channels + channel, column.second * channels + channel);
                let mix = |line: &[u8]| {
                    u32::from(line[left]) * (256 - column.weight) + u32::from(line[right]) * column.weight
                };
                let value = mix(upper) * (256 - row.weight) + mix(lower) * row.weight;
                out.push(((value + (1 << 15)) >> 16) as u8);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(width: u32, values: &[u8]) -> Image {
        Image::from_grey(width, values.len() as u32 / width, values).unwrap()
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        assert!(Image::from_rgb(2, 2, vec![0; 11]).is_none());
        assert!(Image::from_rgb(0, 2, vec![]).is_none());
        assert!(Image::solid(2, 2, [0; 3]).with_alpha(vec![0; 3]).is_none());
        assert_eq!(Image::solid(0, 0, [1, 2, 3]).pixels(), [1, 2, 3]);
    }

    #[test]
    fn scaling_takes_the_nearest_centre_or_mixes() {
        let old = grey(2, &[0, 200]);
        assert_eq!(old.scale(4, 1, Scaling::NearestExact), grey(4, &[0, 0, 200, 200]));
        assert_eq!(old.scale(4, 1, Scaling::Bilinear), grey(4, &[0, 50, 150, 200]));
        assert_eq!(grey(4, &[0, 10, 20, 30]).scale(2, 1, Scaling::NearestExact), grey(2, &[10, 30]));
        let alpha =
            Image::solid(2, 1, [9; 3]).with_alpha(vec![0, 100]).unwrap().scale(4, 2, Scaling::Bilinear);
        assert_eq!(alpha.alpha(), Some(&[0, 25, 75, 100, 0, 25, 75, 100][..]));
    }

    #[test]
    fn the_middle_is_cut_to_the_wanted_proportions() {
        let wide = Image::solid(100, 50, [0; 3]).crop_center(10, 10);
        assert_eq!((wide.width(), wide.height()), (50, 50));
        let high = Image::solid(50, 101, [0; 3]).crop_center(64, 64);
        assert_eq!((high.width(), high.height()), (50, 49));
        assert_eq!(grey(3, &[1, 2, 3]).crop(1, 0, 9, 9), grey(2, &[2, 3]));
        assert_eq!(Image::solid(1, 1000, [0; 3]).crop_center(1000, 1).height(), 1);
    }

    #[test]
    fn channels_come_out_grey_and_negatives_keep_alpha() {
        let image = Image::solid(1, 1, [1, 2, 3]).with_alpha(vec![4]).unwrap();
        assert_eq!(image.channel(Channel::Green).pixels(), [2; 3]);
        assert_eq!(image.channel(Channel::Alpha).pixels(), [4; 3]);
        assert_eq!(image.clone().without_alpha().channel(Channel::Alpha).pixels(), [255; 3]);
        assert_eq!(image.invert().pixels(), [254, 253, 252]);
        assert_eq!(image.invert().alpha(), Some(&[4][..]));
    }
}
