//! WebP, lossless (VP8L), still and animated.

use super::film::Film;
use super::{EncodeError, Image, png};

const LIMIT: u32 = 16_384;

/// EXIF numbers under which ComfyUI keeps texts: the prompt, and the first of the others.
const MODEL: u16 = 0x0110;
const MAKE: u16 = 0x010f;

/// A still WebP file, with `metadata` in EXIF as in [`encode_animated`].
pub fn encode_still(image: &Image, metadata: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
    let film = Film::new(std::slice::from_ref(image), 1.0, "WebP", LIMIT)?;
    let vp8l = lossless(image)?;
    let mut body = Vec::new();
    if !metadata.is_empty() {
        let alpha = if image.alpha().is_some() { ALPHA } else { 0 };
        chunk(&mut body, b"VP8X", &canvas(&film, EXIF | alpha));
    }
    chunk(&mut body, b"VP8L", &vp8l);
    if !metadata.is_empty() {
        chunk(&mut body, b"EXIF", &exif(metadata));
    }
    riff(body)
}

/// An animated WebP file that loops for ever.
///
/// Each of `metadata` becomes an EXIF text `key:value` as ComfyUI writes it: the key `prompt` under Model, the others
/// under Make and the numbers below it. As there, the time of a frame is a whole number of milliseconds.
pub fn encode_animated(
    frames: &[Image],
    fps: f64,
    metadata: &[(&str, &str)],
) -> Result<Vec<u8>, EncodeError> {
    let film = Film::new(frames, fps, "WebP", LIMIT)?;
    let alpha = if frames.iter().any(|frame| frame.alpha().is_some()) { ALPHA } else { 0 };
    let with_exif = if metadata.is_empty() { 0 } else { EXIF };
    let mut body = Vec::new();
    chunk(&mut body, b"VP8X", &canvas(&film, ANIMATION | alpha | with_exif));
    // A transparent background; 0 loops mean for ever.
    chunk(&mut body, b"ANIM", &[0; 6]);
    for frame in frames {
        let mut data = vec![0; 6];
        data.extend(u24(film.width - 1));
        data.extend(u24(film.height - 1));
        data.extend(u24(film.milliseconds()));
        data.push(REPLACE);
        chunk(&mut data, b"VP8L", &lossless(frame)?);
        chunk(&mut body, b"ANMF", &data);
    }
    if !metadata.is_empty() {
        chunk(&mut body, b"EXIF", &exif(metadata));
    }
    riff(body)
}

const ANIMATION: u8 = 0x02;
const EXIF: u8 = 0x08;
const ALPHA: u8 = 0x10;
/// A frame covers what was there before instead of being laid over it.
const REPLACE: u8 = 0x02;

fn canvas(film: &Film<'_>, flags: u8) -> Vec<u8> {
    let mut data = vec![flags, 0, 0, 0];
    data.extend(u24(film.width - 1));
    data.extend(u24(film.height - 1));
    data
}

fn u24(value: u32) -> [u8; 3] {
    let bytes = value.to_le_bytes();
    [bytes[0], bytes[1], bytes[2]]
}

fn chunk(out: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    out.extend_from_slice(data);
    if data.len() % 2 == 1 {
        out.push(0);
    }
}

fn riff(body: Vec<u8>) -> Result<Vec<u8>, EncodeError> {
    let size = u32::try_from(body.len() + 4).map_err(|_| EncodeError::failed("WebP", "more than 4 GiB"))?;
    let mut out = Vec::with_capacity(12 + body.len());
    out.extend_from_slice(b"RIFF");
    out.extend_from_slice(&size.to_le_bytes());
    out.extend_from_slice(b"WEBP");
    out.extend(body);
    Ok(out)
}

/// The contents of a `VP8L` chunk.
fn lossless(image: &Image) -> Result<Vec<u8>, EncodeError> {
    let colour = match image.alpha() {
        Some(_) => image_webp::ColorType::Rgba8,
        None => image_webp::ColorType::Rgb8,
    };
    let mut file = Vec::new();
    image_webp::WebPEncoder::new(&mut file)
        .encode(&png::samples(image), image.width(), image.height(), colour)
        .map_err(|error| EncodeError::failed("WebP", error))?;
    // A file without metadata has one chunk: the header of RIFF, name and length, contents, perhaps a filling byte.
    let length = file.get(16..20).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
    file.drain(..20.min(file.len()));
    file.truncate(length as usize);
    Ok(file)
}

/// An EXIF directory of texts, byte for byte as Pillow lays it out, but without the mark `Exif` that some of its
/// versions leave in front: WebP has none, and ffmpeg complains about it.
fn exif(metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut others = (1..=MAKE).rev();
    let mut entries: Vec<(u16, String)> = Vec::new();
    for (key, value) in metadata {
        let number = if *key == "prompt" { Some(MODEL) } else { others.next() };
        entries.extend(number.map(|number| (number, format!("{key}:{value}\0"))));
    }
    entries.sort_by_key(|(number, _)| *number);
    entries.dedup_by_key(|(number, _)| *number);
    let mut out = b"MM\0*\0\0\0\x08".to_vec();
    out.extend((entries.len() as u16).to_be_bytes());
    let mut far = Vec::new();
    let far_start = out.len() + 12 * entries.len() + 4;
    for (number, text) in &entries {
        const ASCII: u16 = 2;
        out.extend(number.to_be_bytes());
        out.extend(ASCII.to_be_bytes());
        out.extend((text.len() as u32).to_be_bytes());
        if text.len() <= 4 {
            let mut near = text.clone().into_bytes();
            near.resize(4, 0);
            out.extend(near);
        } else {
            out.extend(((far_start + far.len()) as u32).to_be_bytes());
            far.extend_from_slice(text.as_bytes());
        }
    }
    out.extend([0; 4]);
    out.extend(far);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Image> {
        let noise = |seed: u8| (0..9 * 5 * 3).map(|i| (i as u8).wrapping_mul(seed)).collect();
        [3, 7, 91].map(|seed| Image::from_rgb(9, 5, noise(seed)).unwrap()).to_vec()
    }

    #[test]
    fn a_still_picture_survives_with_alpha_and_metadata() {
        let image = frames().remove(2).with_alpha((0..45).collect()).unwrap();
        for metadata in [&[][..], &[("prompt", "{}")]] {
            let file = encode_still(&image, metadata).unwrap();
            assert_eq!(file.len(), 8 + u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize);
            let mut decoder = image_webp::WebPDecoder::new(std::io::Cursor::new(&file)).unwrap();
            let mut rgba = vec![0; 9 * 5 * 4];
            decoder.read_image(&mut rgba).unwrap();
            assert_eq!(rgba, *png::samples(&image));
            assert_eq!(decoder.exif_metadata().unwrap().is_some(), !metadata.is_empty());
        }
    }

    #[test]
    fn an_animation_holds_every_frame() {
        let frames = frames();
        let file = encode_animated(&frames, 8.0, &[]).unwrap();
        let mut decoder = image_webp::WebPDecoder::new(std::io::Cursor::new(&file)).unwrap();
        assert_eq!((decoder.num_frames(), decoder.dimensions(), decoder.loop_duration()), (3, (9, 5), 375));
        for frame in &frames {
            let mut rgb = vec![0; 9 * 5 * 3];
            assert_eq!(decoder.read_frame(&mut rgb).unwrap(), 125);
            assert_eq!(rgb, frame.pixels());
        }
    }

    #[test]
    fn exif_is_laid_out_as_pillow_does() {
        let expected = b"MM\0*\0\0\0\x08\0\x02\
            \x01\x0f\0\x02\0\0\0\x12\0\0\0\x26\
            \x01\x10\0\x02\0\0\0\x10\0\0\0\x38\
            \0\0\0\0workflow:{\"b\": 2}\0prompt:{\"a\": 1}\0";
        assert_eq!(exif(&[("prompt", "{\"a\": 1}"), ("workflow", "{\"b\": 2}")]), expected);
    }
}
