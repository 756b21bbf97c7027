//! Pictures as pixels: PNG, JPEG and WebP in, PNG out.

use std::io::Cursor;

use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::rooms::Room;

/// The largest file that is taken apart.
pub(super) const LARGEST: u64 = 64 << 20;

/// The most pixels of a picture that is: 128 MiB of them.
const MOST_PIXELS: u64 = 32 << 20;

/// What the texts of a PNG may take when they are unpacked, all together. Further ones are left out. A workflow has some
/// hundred kilobytes.
const MOST_TEXT: usize = 16 << 20;

/// Works with pixels where nobody has to wait for it. The room is taken until that ends, whether or not somebody still
/// waits for it.
pub(super) async fn on_a_thread<T: Send + 'static>(
    room: Room,
    work: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    let work = move || {
        let _held_to_the_end = room;
        work()
    };
    tokio::task::spawn_blocking(work).await.ok().flatten()
}

/// What is wanted of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    /// Its colours, as if nothing of it were transparent.
    Rgb,
    /// Its transparency; the colours are black.
    Alpha,
}

impl Channel {
    /// `None` stands for all of it.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "rgb" => Some(Self::Rgb),
            "a" => Some(Self::Alpha),
            _ => None,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Rgb => "rgb",
            Self::Alpha => "a",
        }
    }
}

/// A picture: `rgba` has four bytes for every pixel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Picture {
    width: u32,
    height: u32,
    rgba: Vec<u8>,
    opaque: bool,
    /// The texts of a PNG, which carry the workflow.
    texts: Vec<(String, String)>,
}

/// Reads a picture; `None` when it is none of those known here, broken, or too large.
pub(super) fn decode(bytes: &[u8]) -> Option<Picture> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => png(bytes),
        [0xff, 0xd8, 0xff, ..] => jpeg(bytes),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => webp(bytes),
        _ => None,
    }
}

impl Picture {
    fn new(width: u32, height: u32, rgba: Vec<u8>) -> Option<Self> {
        let whole = width as usize * height as usize * 4 == rgba.len();
        whole.then_some(Self { width, height, rgba, opaque: false, texts: Vec::new() })
    }

    /// Only this of it, without texts.
    pub(super) fn only(mut self, channel: Channel) -> Self {
        self.texts.clear();
        match channel {
            Channel::Rgb => {
                self.opaque = true;
                self.rgba.chunks_exact_mut(4).for_each(|pixel| pixel[3] = 255);
            }
            Channel::Alpha => self.rgba.chunks_exact_mut(4).for_each(|pixel| pixel[..3].fill(0)),
        }
        self
    }

    /// With the transparency of another picture of the same size.
    pub(super) fn with_alpha_of(mut self, mask: &Self) -> Option<Self> {
        if (self.width, self.height) != (mask.width, mask.height) {
            return None;
        }
        for (pixel, mask) in self.rgba.chunks_exact_mut(4).zip(mask.rgba.chunks_exact(4)) {
            pixel[3] = mask[3];
        }
        self.opaque = false;
        Some(self)
    }

    /// As a PNG file.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut encoder = ::png::Encoder::new(&mut out, self.width, self.height);
        encoder.set_depth(::png::BitDepth::Eight);
        encoder.set_compression(::png::Compression::Fast);
        encoder.set_color(if self.opaque { ::png::ColorType::Rgb } else { ::png::ColorType::Rgba });
        for (keyword, text) in &self.texts {
            // A text that PNG has no room for is left out.
            let _ = encoder.add_itxt_chunk(keyword.clone(), text.clone());
        }
        let mut writer = encoder.write_header().ok()?;
        if self.opaque {
            let rgb: Vec<u8> =
                self.rgba.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
            writer.write_image_data(&rgb).ok()?;
        } else {
            writer.write_image_data(&self.rgba).ok()?;
        }
        writer.finish().ok()?;
        Some(out)
    }
}

fn fits(width: u32, height: u32) -> Option<()> {
    (u64::from(width) * u64::from(height) <= MOST_PIXELS).then_some(())
}

fn png(bytes: &[u8]) -> Option<Picture> {
    // Beside the pixels. Colour profiles are not looked at, and need not be unpacked.
    let limits = ::png::Limits { bytes: usize::try_from(LARGEST).unwrap_or(usize::MAX) };
    let mut decoder = ::png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(::png::Transformations::EXPAND | ::png::Transformations::STRIP_16);
    let mut reader = decoder.read_info().ok()?;
    let (width, height) = (reader.info().width, reader.info().height);
    fits(width, height)?;
    let mut data = vec![0; reader.output_buffer_size()?];
    let frame = reader.next_frame(&mut data).ok()?;
    data.truncate(frame.buffer_size());
    let rgba: Vec<u8> = match frame.color_type {
        ::png::ColorType::Rgba => data,
        ::png::ColorType::Rgb => data.chunks_exact(3).flat_map(|p| [p[0], p[1], p[2], 255]).collect(),
        ::png::ColorType::GrayscaleAlpha => {
            data.chunks_exact(2).flat_map(|p| [p[0], p[0], p[0], p[1]]).collect()
        }
        ::png::ColorType::Grayscale => data.iter().flat_map(|&p| [p, p, p, 255]).collect(),
        // It was expanded.
        ::png::ColorType::Indexed => return None,
    };
    let mut picture = Picture::new(width, height, rgba)?;
    let info = reader.info();
    let latin = info.uncompressed_latin1_text.iter().map(|chunk| (chunk.keyword.clone(), chunk.text.clone()));
    picture.texts = latin.collect();
    let mut left = MOST_TEXT;
    for chunk in &info.utf8_text {
        // A kilobyte can unpack to a megabyte, so it is unpacked only as far as there is room.
        let mut chunk = chunk.clone();
        let Ok(()) = chunk.decompress_text_with_limit(left) else { continue };
        let Ok(text) = chunk.get_text() else { continue };
        left = left.saturating_sub(text.len());
        picture.texts.push((chunk.keyword, text));
    }
    Some(picture)
}

fn jpeg(bytes: &[u8]) -> Option<Picture> {
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(ColorSpace::RGBA)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX));
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().ok()?;
    let (width, height) = decoder.dimensions()?;
    let (width, height) = (u32::try_from(width).ok()?, u32::try_from(height).ok()?);
    fits(width, height)?;
    Picture::new(width, height, decoder.decode().ok()?)
}

fn webp(bytes: &[u8]) -> Option<Picture> {
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).ok()?;
    let (width, height) = decoder.dimensions();
    fits(width, height)?;
    let mut data = vec![0; decoder.output_buffer_size()?];
    decoder.read_image(&mut data).ok()?;
    let rgba = if decoder.has_alpha() {
        data
    } else {
        data.chunks_exact(3).flat_map(|p| [p[0], p[1], p[2], 255]).collect()
    };
    Picture::new(width, height, rgba)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(rgba: [u8; 8]) -> Picture {
        Picture::new(2, 1, rgba.to_vec()).unwrap()
    }

    #[test]
    fn the_alpha_of_the_mask_and_the_texts_of_the_picture_come_together() {
        let mut picture = two([9, 8, 7, 255, 6, 5, 4, 255]);
        picture.texts = vec![("workflow".to_owned(), "{\"é\": 1}".to_owned())];
        let mask = two([0, 0, 0, 10, 0, 0, 0, 200]);
        let file = picture.with_alpha_of(&mask).unwrap().encode().unwrap();
        let read = decode(&file).unwrap();
        assert_eq!(read.rgba, [9, 8, 7, 10, 6, 5, 4, 200]);
        assert_eq!(read.texts, [("workflow".to_owned(), "{\"é\": 1}".to_owned())]);
        let other = Picture::new(1, 1, vec![0; 4]).unwrap();
        assert!(read.with_alpha_of(&other).is_none(), "the sizes differ");
    }

    #[test]
    fn a_text_that_unpacks_to_gigabytes_is_left_out_and_the_picture_stays() {
        // 64 MiB here: enough to tell, and what is unpacked beyond the limit would show in the texts.
        let text = "x".repeat(64 << 20);
        let mut file = Vec::new();
        let mut encoder = ::png::Encoder::new(&mut file, 1, 1);
        encoder.set_color(::png::ColorType::Rgba);
        let mut chunk = ::png::text_metadata::ITXtChunk::new("workflow", text);
        chunk.compressed = true;
        chunk.compress_text().unwrap();
        let mut small = ::png::text_metadata::ITXtChunk::new("prompt", "{}");
        small.compressed = true;
        let mut writer = encoder.write_header().unwrap();
        writer.write_text_chunk(&chunk).unwrap();
        writer.write_text_chunk(&small).unwrap();
        writer.write_image_data(&[1, 2, 3, 4]).unwrap();
        writer.finish().unwrap();
        assert!(file.len() < 1 << 20, "{}", file.len());
        let read = decode(&file).unwrap();
        assert_eq!(read.rgba, [1, 2, 3, 4]);
        assert_eq!(read.texts, [("prompt".to_owned(), "{}".to_owned())]);
    }

    #[test]
    fn channels_are_taken_apart() {
        let rgb = two([9, 8, 7, 0, 6, 5, 4, 128]).only(Channel::Rgb).encode().unwrap();
        assert_eq!(decode(&rgb).unwrap().rgba, [9, 8, 7, 255, 6, 5, 4, 255]);
        let alpha = two([9, 8, 7, 0, 6, 5, 4, 128]).only(Channel::Alpha).encode().unwrap();
        assert_eq!(decode(&alpha).unwrap().rgba, [0, 0, 0, 0, 0, 0, 0, 128]);
    }

    #[test]
    fn what_is_no_picture_or_cut_off_is_none() {
        let whole = two([1; 8]).encode().unwrap();
        assert!(decode(&whole[..whole.len() / 2]).is_none());
        for bytes in [&b""[..], b"hello", b"\x89PNG", b"\xff\xd8\xff\xe0", b"RIFF\0\0\0\0WEBP"] {
            assert!(decode(bytes).is_none(), "{bytes:?}");
        }
    }
}
