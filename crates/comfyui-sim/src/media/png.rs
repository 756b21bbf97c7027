//! PNG, with the text chunks in which ComfyUI keeps the workflow.

use super::{DecodeError, Image};

/// The most pixels that [`decode`] is willing to hold: a square of 16,384.
const MAX_PIXELS: u64 = 1 << 28;

/// A PNG file with a text chunk for each `(keyword, text)`: `tEXt` where Latin-1 suffices, else `iTXt`.
pub fn encode(image: &Image, text: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    // Writing to memory cannot fail, and the invariant of `Image` rules out the other errors; a keyword that PNG
    // forbids is left out.
    let _ = write(image, text, &mut out);
    out
}

fn write(image: &Image, text: &[(&str, &str)], out: &mut Vec<u8>) -> Result<(), ::png::EncodingError> {
    let mut encoder = ::png::Encoder::new(out, image.width(), image.height());
    encoder.set_depth(::png::BitDepth::Eight);
    encoder.set_compression(::png::Compression::Fast);
    encoder.set_color(if image.alpha().is_some() {
        ::png::ColorType::Rgba
    } else {
        ::png::ColorType::Rgb
    });
    for (keyword, text) in text {
        if text.chars().all(|c| u32::from(c) < 256) {
            encoder.add_text_chunk((*keyword).to_owned(), (*text).to_owned())?;
        } else {
            encoder.add_itxt_chunk((*keyword).to_owned(), (*text).to_owned())?;
        }
    }
    let mut writer = encoder.write_header()?;
    match image.alpha() {
        None => writer.write_image_data(image.pixels())?,
        Some(alpha) => {
            let rgba: Vec<u8> = image
                .pixels()
                .chunks_exact(3)
                .zip(alpha)
                .flat_map(|(rgb, &alpha)| [rgb[0], rgb[1], rgb[2], alpha])
                .collect();
            writer.write_image_data(&rgba)?;
        }
    }
    writer.finish()
}

/// Reads a PNG of any colour type; 16 bits are cut to 8, of an animation the first picture is read.
pub fn decode(bytes: &[u8]) -> Result<Image, DecodeError> {
    let broken = |error: ::png::DecodingError| DecodeError::Broken {
        format: "PNG",
        reason: error.to_string(),
    };
    let mut decoder = ::png::Decoder::new(std::io::Cursor::new(bytes));
    decoder.set_transformations(::png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(broken)?;
    let (width, height) = reader.info().size();
    let too_large = DecodeError::TooLarge {
        format: "PNG",
        width,
        height,
    };
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
            .flat_map(|pixel| {
                if colour == 1 {
                    [pixel[0]; 3]
                } else {
                    [pixel[0], pixel[1], pixel[2]]
                }
            })
            .collect();
        let alpha = channels.is_multiple_of(2).then(|| {
            data.iter()
                .skip(channels - 1)
                .step_by(channels)
                .copied()
                .collect()
        });
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
