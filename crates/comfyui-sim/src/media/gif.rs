//! Animated GIF, in a fixed palette with ordered dithering.

use super::film::Film;
use super::{EncodeError, Image};

/// Shades of red, green and blue in the palette: 252 colours in all.
const SHADES: [u32; 3] = [6, 7, 6];

/// The pattern by which shades between two of the palette are mixed.
const BAYER: [[usize; 4]; 4] = [[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]];

/// A GIF that loops for ever. Alpha is dropped.
pub fn encode(frames: &[Image], fps: f64) -> Result<Vec<u8>, EncodeError> {
    let film = Film::new(frames, fps, "GIF", u32::from(u16::MAX))?;
    write(&film).map_err(|error| EncodeError::failed("GIF", error))
}

fn write(film: &Film<'_>) -> Result<Vec<u8>, ::gif::EncodingError> {
    let (width, height) = (film.width as u16, film.height as u16);
    let mut encoder = ::gif::Encoder::new(Vec::new(), width, height, &palette())?;
    encoder.set_repeat(::gif::Repeat::Infinite)?;
    let shares = Shares::new();
    for (index, image) in film.frames.iter().enumerate() {
        let delay = film.start(index + 1, 100) - film.start(index, 100);
        // Players take less than two hundredths for a mistake and show such frames much longer.
        let delay = delay.clamp(2, u64::from(u16::MAX)) as u16;
        let buffer = indices(image, &shares).into();
        encoder.write_frame(&::gif::Frame { width, height, delay, buffer, ..::gif::Frame::default() })?;
    }
    encoder.into_inner()
}

fn palette() -> Vec<u8> {
    let [reds, greens, blues] = SHADES;
    let shade = |index: u32, count: u32| (index * 255 / (count - 1)) as u8;
    let mut palette = Vec::with_capacity(3 * 252);
    for red in 0..reds {
        for green in 0..greens {
            for blue in 0..blues {
                palette.extend([shade(red, reds), shade(green, greens), shade(blue, blues)]);
            }
        }
    }
    palette
}

/// For each channel, threshold and value: what it adds to the index of the colour.
struct Shares(Vec<u8>);

impl Shares {
    fn new() -> Self {
        let [_, greens, blues] = SHADES;
        let mut shares = Vec::with_capacity(3 * 16 * 256);
        for (shades, weight) in SHADES.into_iter().zip([greens * blues, blues, 1]) {
            for threshold in 0..16 {
                let shade = |value: u32| (value * (shades - 1) + threshold * 255 / 16) / 255;
                shares.extend((0..256).map(|value| (shade(value) * weight) as u8));
            }
        }
        Self(shares)
    }

    fn of(&self, channel: usize, threshold: usize, value: u8) -> u8 {
        self.0[(channel * 16 + threshold) * 256 + value as usize]
    }
}

fn indices(image: &Image, shares: &Shares) -> Vec<u8> {
    let rows = image.pixels().chunks_exact(3 * image.width() as usize);
    let mut out = Vec::with_capacity(image.pixels().len() / 3);
    for (row, thresholds) in rows.zip(BAYER.iter().cycle()) {
        for (x, rgb) in row.chunks_exact(3).enumerate() {
            let threshold = thresholds[x % 4];
            let share = |channel: usize| shares.of(channel, threshold, rgb[channel]);
            out.push(share(0) + share(1) + share(2));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_of_the_palette_stay_and_others_are_mixed() {
        let palette = palette();
        assert_eq!(palette.len(), 3 * 252);
        for rgb in [[0, 0, 0], [255, 255, 255], [255, 0, 0], [51, 85, 204]] {
            let index = indices(&Image::solid(4, 4, rgb), &Shares::new());
            assert!(index.iter().all(|&index| palette[3 * usize::from(index)..][..3] == rgb), "{rgb:?}");
        }
        let mixed = indices(&Image::solid(4, 4, [25; 3]), &Shares::new());
        let mean = mixed.iter().map(|&index| u32::from(palette[3 * usize::from(index)])).sum::<u32>() / 16;
        assert!((22..=28).contains(&mean), "{mean}");
    }

    #[test]
    fn delays_follow_the_rate_on_average() {
        let frames = vec![Image::solid(3, 2, [9; 3]); 30];
        let file = encode(&frames, 24.0).unwrap();
        let mut decoder = ::gif::Decoder::new(file.as_slice()).unwrap();
        let mut total = 0;
        let mut count = 0;
        while let Some(frame) = decoder.read_next_frame().unwrap() {
            total += u32::from(frame.delay);
            count += 1;
        }
        assert_eq!((count, total), (30, 125));
        assert_eq!(decoder.repeat(), ::gif::Repeat::Infinite);
    }
}
