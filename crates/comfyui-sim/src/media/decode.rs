//! Reading whatever picture somebody uploaded.

use super::{DecodeError, Image, png};
use std::io::Cursor;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// The most pixels that a reader is willing to hold: beyond them Pillow, too, takes a file for a bomb.
pub(super) const MAX_PIXELS: u64 = 178_956_970;

/// Reads a picture of any format that an upload is likely to have: PNG, JPEG, GIF, WebP or BMP.
///
/// Of an animation the first frame is read. A BMP must not be compressed.
pub fn any(bytes: &[u8]) -> Result<Image, DecodeError> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => png::decode(bytes),
        [0xff, 0xd8, 0xff, ..] => jpeg(bytes),
        [b'G', b'I', b'F', b'8', ..] => gif(bytes),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => webp(bytes),
        [b'B', b'M', ..] => bmp(bytes),
        _ => Err(DecodeError::Unknown),
    }
}

fn check_size(format: &'static str, width: u32, height: u32) -> Result<(), DecodeError> {
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(DecodeError::TooLarge { format, width, height });
    }
    Ok(())
}

fn fit(format: &'static str, image: Option<Image>) -> Result<Image, DecodeError> {
    image.ok_or_else(|| DecodeError::broken(format, "the pixels do not fit the size"))
}

fn jpeg(bytes: &[u8]) -> Result<Image, DecodeError> {
    let broken = |error: zune_jpeg::errors::DecodeErrors| DecodeError::broken("JPEG", error);
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(ColorSpace::RGB)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .set_strict_mode(true);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(broken)?;
    let (width, height) = decoder.dimensions().unwrap_or((0, 0));
    let (width, height) = (width as u32, height as u32);
    check_size("JPEG", width, height)?;
    fit("JPEG", Image::from_rgb(width, height, decoder.decode().map_err(broken)?))
}

fn gif(bytes: &[u8]) -> Result<Image, DecodeError> {
    let broken = |error: ::gif::DecodingError| DecodeError::broken("GIF", error);
    let mut options = ::gif::DecodeOptions::new();
    options.set_color_output(::gif::ColorOutput::RGBA);
    // The size of the whole is checked below, and that no frame is larger is checked here.
    options.check_frame_consistency(true);
    options.set_memory_limit(::gif::MemoryLimit::Unlimited);
    let mut decoder = options.read_info(bytes).map_err(broken)?;
    let (width, height) = (u32::from(decoder.width()), u32::from(decoder.height()));
    check_size("GIF", width, height)?;
    let mut image = Image::solid(width, height, [0; 3]);
    let frame = decoder.read_next_frame().map_err(broken)?;
    let frame = frame.ok_or_else(|| DecodeError::broken("GIF", "no picture inside"))?;
    let frame_width = usize::from(frame.width.max(1));
    for (y, row) in (u32::from(frame.top)..).zip(frame.buffer.chunks_exact(4 * frame_width)) {
        for (x, rgba) in (u32::from(frame.left)..).zip(row.chunks_exact(4)) {
            if rgba[3] > 0 {
                image.set_pixel(x, y, [rgba[0], rgba[1], rgba[2]]);
            }
        }
    }
    Ok(image)
}

fn webp(bytes: &[u8]) -> Result<Image, DecodeError> {
    let broken = |error: image_webp::DecodingError| DecodeError::broken("WebP", error);
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).map_err(broken)?;
    let (width, height) = decoder.dimensions();
    check_size("WebP", width, height)?;
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut data = vec![0; width as usize * height as usize * channels];
    decoder.read_image(&mut data).map_err(broken)?;
    if channels == 3 {
        return fit("WebP", Image::from_rgb(width, height, data));
    }
    let rgb = data.chunks_exact(4).flat_map(|rgba| [rgba[0], rgba[1], rgba[2]]).collect();
    let alpha = data.chunks_exact(4).map(|rgba| rgba[3]).collect();
    fit("WebP", Image::from_rgb(width, height, rgb).and_then(|image| image.with_alpha(alpha)))
}

fn bmp(bytes: &[u8]) -> Result<Image, DecodeError> {
    let cut = || DecodeError::broken("BMP", "cut off");
    let at = |start: usize| bytes.get(start..start + 4).and_then(|four| four.try_into().ok()).ok_or_else(cut);
    let number = |start: usize| at(start).map(u32::from_le_bytes);
    let (data, info) = (number(10)? as usize, number(14)? as usize);
    let (width, signed_height) = (number(18)?, at(22).map(i32::from_le_bytes)?);
    let (depth, compression) = (number(28)? & 0xffff, number(30)?);
    let height = signed_height.unsigned_abs();
    check_size("BMP", width, height)?;
    // Compression 3 names its bit masks; nearly always they are the usual ones of 32 bits.
    if info < 40 || !matches!((depth, compression), (8 | 24 | 32, 0) | (32, 3)) {
        return Err(DecodeError::broken("BMP", "only 8, 24 and 32 bits without compression are supported"));
    }
    let step = depth as usize / 8;
    let line = (width as usize * step).next_multiple_of(4);
    let palette = bytes.get(14 + info..data).unwrap_or_default();
    let mut pixels = Vec::with_capacity(width as usize * height as usize * 3);
    for row in 0..height as usize {
        // A positive height means that the last row comes first.
        let row = if signed_height > 0 { height as usize - 1 - row } else { row };
        let start = row.checked_mul(line).and_then(|offset| offset.checked_add(data)).ok_or_else(cut)?;
        let row = bytes.get(start..start + width as usize * step).ok_or_else(cut)?;
        for pixel in row.chunks_exact(step) {
            let bgr = match *pixel {
                [index] => palette.get(4 * usize::from(index)..).unwrap_or_default(),
                _ => pixel,
            };
            let [blue, green, red, ..] = *bgr else {
                return Err(cut());
            };
            pixels.extend([red, green, blue]);
        }
    }
    fit("BMP", Image::from_rgb(width, height, pixels))
}

#[cfg(test)]
mod tests {
    use super::super::{Card, card, gif, jpeg, webp};
    use super::*;
    use proptest::prelude::{any, prop, proptest};
    use std::sync::LazyLock;

    fn two_pixel_bmp(depth: u8) -> Vec<u8> {
        let mut file = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x02\0\0\0\x01\0\0\0\x01\0".to_vec();
        file.extend([depth, 0]);
        file.resize(0x36, 0);
        file.extend(if depth == 24 { vec![1, 2, 3, 4, 5, 6, 0, 0] } else { vec![1, 2, 3, 0, 4, 5, 6, 0] });
        file
    }

    #[test]
    fn every_format_is_told_by_its_first_bytes() {
        let image = Image::solid(20, 10, [255, 0, 0]);
        for file in [
            png::encode(&image, &[]),
            gif::encode(std::slice::from_ref(&image), 1.0).unwrap(),
            webp::encode_still(&image, &[]).unwrap(),
            webp::encode_animated(std::slice::from_ref(&image), 1.0, &[("prompt", "1")]).unwrap(),
        ] {
            assert_eq!(super::any(&file).unwrap().without_alpha(), image);
        }
        let from_jpeg = super::any(&jpeg::encode(&image, 90).unwrap()).unwrap();
        assert_eq!((from_jpeg.width(), from_jpeg.height()), (20, 10));
        for depth in [24, 32] {
            assert_eq!(super::any(&two_pixel_bmp(depth)).unwrap().pixels(), [3, 2, 1, 6, 5, 4]);
        }
    }

    #[test]
    fn other_files_and_broken_ones_are_errors() {
        for text in
            [&b""[..], b"BM", b"hello world, this is not a picture", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBPVP8L"]
        {
            assert!(super::any(text).is_err(), "{text:?}");
        }
        let image = Image::solid(200, 100, [255, 0, 9]);
        for file in [
            png::encode(&image, &[]),
            gif::encode(std::slice::from_ref(&image), 1.0).unwrap(),
            webp::encode_still(&image, &[]).unwrap(),
            jpeg::encode(&image, 90).unwrap(),
            two_pixel_bmp(24),
        ] {
            for part in 1..8 {
                let cut = &file[..file.len() * part / 8];
                assert!(super::any(cut).is_err(), "{:?} cut to {part}/8", &file[..4]);
            }
        }
    }

    proptest! {
        /// Whatever was uploaded: a picture or an error.
        #[test]
        fn damaged_files_are_no_danger(
            which in 0usize..7, cut in 0.0..1.0f64, places in prop::collection::vec((0.0..1.0f64, any::<u8>()), 0..8),
        ) {
            static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
                let prompt = "noise";
                let image = card::draw(&Card {
                    width: 40, height: 30, title: "t", lines: &[], prompt, seed: 1, step: Some((1, 9)),
                });
                let with_alpha = image.clone().with_alpha(vec![7; 1200]).unwrap();
                vec![
                    png::encode(&image, &[("prompt", "{}")]),
                    png::encode(&with_alpha, &[]),
                    jpeg::encode(&image, 90).unwrap(),
                    gif::encode(&[image.clone(), image.clone()], 9.0).unwrap(),
                    webp::encode_still(&with_alpha, &[("prompt", "{}")]).unwrap(),
                    webp::encode_animated(&[image.clone(), image], 9.0, &[]).unwrap(),
                    two_pixel_bmp(24),
                ]
            });
            let mut file = FILES[which].clone();
            for (place, value) in places {
                // Mostly in the header, where it hurts.
                let place = (place * place * place * file.len() as f64) as usize;
                file[place] = value;
            }
            file.truncate((file.len() as f64 * (1.0 - cut * cut * cut)) as usize);
            let _ = super::any(&file);
        }
    }
}
