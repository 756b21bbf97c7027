//! PNG, with the text chunks in which ComfyUI keeps the workflow.

use std::borrow::Cow;

use super::decode::MAX_PIXELS;
use super::{DecodeError, Image};

/// A PNG file with a text chunk for each `(keyword, text)`: `tEXt` where Latin-1 suffices, else `iTXt`.
///
/// A keyword that PNG has no room for (empty, longer than 79 bytes or beyond Latin-1) is left out with its text.
pub fn encode(image: &Image, text: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    let written = write(image, text, &mut out);
    // Writing to memory cannot fail, and the invariant of `Image` rules out the errors of the encoder.
    debug_assert!(written.is_ok(), "{written:?}");
    out
}

fn write(image: &Image, text: &[(&str, &str)], out: &mut Vec<u8>) -> Result<(), ::png::EncodingError> {
    let mut encoder = ::png::Encoder::new(out, image.width(), image.height());
    set_format(&mut encoder, image);
    let mut writer = encoder.write_header()?;
    for (keyword, text) in text {
        if let Some((name, data)) = text_chunk(keyword, text) {
            writer.write_chunk(name, &data)?;
        }
    }
    writer.write_image_data(&samples(image))?;
    writer.finish()
}

/// Colour type and effort; the files are often looked at once, so speed goes before size.
pub(super) fn set_format<W: std::io::Write>(encoder: &mut ::png::Encoder<'_, W>, image: &Image) {
    encoder.set_depth(::png::BitDepth::Eight);
    encoder.set_compression(::png::Compression::Fast);
    encoder.set_color(if image.alpha().is_some() { ::png::ColorType::Rgba } else { ::png::ColorType::Rgb });
}

/// RGB or RGBA, row by row.
pub(super) fn samples(image: &Image) -> Cow<'_, [u8]> {
    match image.alpha() {
        None => Cow::Borrowed(image.pixels()),
        Some(alpha) => {
            let pixels = image.pixels().chunks_exact(3).zip(alpha);
            pixels.flat_map(|(rgb, &alpha)| [rgb[0], rgb[1], rgb[2], alpha]).collect()
        }
    }
}

fn text_chunk(keyword: &str, text: &str) -> Option<(::png::chunk::ChunkType, Vec<u8>)> {
    let mut data = latin_1(keyword).filter(|keyword| (1..80).contains(&keyword.len()))?;
    data.push(0);
    if let Some(text) = latin_1(text) {
        data.extend(text);
        return Some((::png::chunk::tEXt, data));
    }
    // Not compressed; no language, no translated keyword.
    data.extend([0; 4]);
    data.extend(text.as_bytes());
    Some((::png::chunk::iTXt, data))
}

/// The text in Latin-1, if it has only such characters.
pub(super) fn latin_1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|character| u8::try_from(u32::from(character)).ok()).collect()
}

/// Reads a PNG of any colour type; 16 bits are cut to 8, of an animation the first picture is read.
pub fn decode(bytes: &[u8]) -> Result<Image, DecodeError> {
    let broken =
        |error: ::png::DecodingError| DecodeError::Broken { format: "PNG", reason: error.to_string() };
    let mut decoder = ::png::Decoder::new(std::io::Cursor::new(bytes));
    decoder.set_transformations(::png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(broken)?;
    let (width, height) = reader.info().size();
    let too_large = DecodeError::TooLarge { format: "PNG", width, height };
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(too_large);
    }
    let mut data = vec![0; reader.output_buffer_size().ok_or(too_large)?];
    let frame = reader.next_frame(&mut data).map_err(broken)?;
    data.truncate(frame.buffer_size());
    let split = |channels: usize| -> (Vec<u8>, Option<Vec<u8>>) {
        let colour = channels.div_ceil(2) * 2 - 1;
        let pixels = data
            .chunks_exact(channels)
            .flat_map(|pixel| if colour == 1 { [pixel[0]; 3] } else { [pixel[0], pixel[1], pixel[2]] })
            .collect();
        let alpha = channels
            .is_multiple_of(2)
            .then(|| data.iter().skip(channels - 1).step_by(channels).copied().collect());
        (pixels, alpha)
    };
    let (pixels, alpha) = split(frame.color_type.samples());
    let image = Image::from_rgb(width, height, pixels);
    let image = match alpha {
        Some(alpha) => image.and_then(|image| image.with_alpha(alpha)),
        None => image,
    };
    image.ok_or_else(|| DecodeError::Broken {
        format: "PNG",
        reason: "pixel data does not fit the size".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and contents of all chunks.
    fn chunks(mut file: &[u8]) -> Vec<(&[u8], &[u8])> {
        let mut out = Vec::new();
        file = &file[8..];
        while let Some(length) = file.first_chunk::<4>() {
            let end = 8 + u32::from_be_bytes(*length) as usize;
            out.push((&file[4..8], &file[8..end]));
            file = &file[end + 4..];
        }
        out
    }

    #[test]
    fn pixels_survive_with_and_without_alpha() {
        let image = Image::from_rgb(2, 1, vec![1, 2, 3, 250, 251, 252]).unwrap();
        assert_eq!(decode(&encode(&image, &[])).unwrap(), image);
        let image = image.with_alpha(vec![0, 255]).unwrap();
        assert_eq!(decode(&encode(&image, &[])).unwrap(), image);
    }

    #[test]
    fn texts_are_latin_1_where_that_suffices() {
        let file = encode(
            &Image::solid(1, 1, [0; 3]),
            &[("prompt", "{\"a\": \"é\"}"), ("workflow", "漢"), ("", "x"), ("b", "y")],
        );
        let chunks = chunks(&file);
        assert!(chunks.contains(&(b"tEXt", b"prompt\0{\"a\": \"\xe9\"}")));
        assert!(chunks.contains(&(b"iTXt", "workflow\0\0\0\0\0漢".as_bytes())));
        assert!(chunks.contains(&(b"tEXt", b"b\0y")));
        assert_eq!(chunks.last(), Some(&(&b"IEND"[..], &b""[..])));
    }

    #[test]
    fn other_colour_types_become_rgb() {
        let write = |colour, depth, palette: Option<Vec<u8>>, data: &[u8]| {
            let mut file = Vec::new();
            let mut encoder = ::png::Encoder::new(&mut file, 2, 1);
            encoder.set_color(colour);
            encoder.set_depth(depth);
            if let Some(palette) = palette {
                encoder.set_palette(palette);
            }
            encoder.write_header().unwrap().write_image_data(data).unwrap();
            decode(&file).unwrap()
        };
        use ::png::{BitDepth, ColorType};
        let black_white = write(ColorType::Grayscale, BitDepth::One, None, &[0b0100_0000]);
        assert_eq!(black_white.pixels(), [0, 0, 0, 255, 255, 255]);
        let grey_alpha = write(ColorType::GrayscaleAlpha, BitDepth::Eight, None, &[9, 1, 8, 2]);
        assert_eq!((grey_alpha.pixels(), grey_alpha.alpha()), (&[9, 9, 9, 8, 8, 8][..], Some(&[1, 2][..])));
        let palette = write(ColorType::Indexed, BitDepth::Eight, Some(vec![1, 2, 3, 4, 5, 6]), &[1, 0]);
        assert_eq!(palette.pixels(), [4, 5, 6, 1, 2, 3]);
        let deep = write(ColorType::Rgb, BitDepth::Sixteen, None, &[1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]);
        assert_eq!(deep.pixels(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn broken_files_are_errors() {
        let file = encode(&Image::solid(40, 40, [5; 3]), &[]);
        for cut in [0, 8, 20, 40, file.len() - 20] {
            assert!(matches!(decode(&file[..cut]), Err(DecodeError::Broken { .. })), "{cut}");
        }
        let mut huge = file;
        huge[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
        assert!(decode(&huge).is_err());
    }
}
