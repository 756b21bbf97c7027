//! Animated PNG.

use super::film::Film;
use super::{EncodeError, Image, png};

/// ComfyUI keeps the workflow of an animation in a chunk of its own, after the pictures.
const COMF: ::png::chunk::ChunkType = ::png::chunk::ChunkType(*b"comf");

/// An animated PNG that loops for ever, with ComfyUI's own `comf` chunk for each of `metadata`.
///
/// As there, the time of a frame is a whole number of milliseconds. Alpha is dropped unless the first frame has it.
pub fn encode(frames: &[Image], fps: f64, metadata: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
    let film = Film::new(frames, fps, "PNG", i32::MAX as u32)?;
    let mut out = Vec::new();
    write(&film, metadata, &mut out).map_err(|error| EncodeError::failed("PNG", error))?;
    Ok(out)
}

fn write(film: &Film<'_>, metadata: &[(&str, &str)], out: &mut Vec<u8>) -> Result<(), ::png::EncodingError> {
    let mut encoder = ::png::Encoder::new(out, film.width, film.height);
    let with_alpha = film.frames[0].alpha().is_some();
    png::set_format(&mut encoder, &film.frames[0]);
    encoder.set_animated(u32::try_from(film.frames.len()).unwrap_or(u32::MAX), 0)?;
    // The numerator has 16 bits, which suffice for milliseconds up to a minute.
    let milliseconds = film.milliseconds();
    match u16::try_from(milliseconds) {
        Ok(milliseconds) => encoder.set_frame_delay(milliseconds, 1000)?,
        Err(_) => encoder.set_frame_delay((milliseconds / 1000) as u16, 1)?,
    }
    let mut writer = encoder.write_header()?;
    for frame in film.frames {
        if frame.alpha().is_some() == with_alpha {
            writer.write_image_data(&png::samples(frame))?;
        } else if with_alpha {
            let opaque = vec![255; frame.pixels().len() / 3];
            let frame = frame.clone().with_alpha(opaque).unwrap_or_else(|| frame.clone());
            writer.write_image_data(&png::samples(&frame))?;
        } else {
            writer.write_image_data(frame.pixels())?;
        }
    }
    for (key, text) in metadata {
        let mut data = key.as_bytes().to_vec();
        data.push(0);
        data.extend(png::latin_1(text).unwrap_or_else(|| text.as_bytes().to_vec()));
        writer.write_chunk(COMF, &data)?;
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workflow_stands_after_the_pictures() {
        let frames = [Image::solid(2, 2, [1, 2, 3]), Image::solid(2, 2, [4, 5, 6])];
        let file = encode(&frames, 6.0, &[("prompt", "{}")]).unwrap();
        let find = |name: &[u8]| file.windows(name.len()).rposition(|window| window == name).unwrap();
        assert!(find(b"fdAT") < find(b"comfprompt\0{}"));
        assert!(find(b"comf") < find(b"IEND"));
        // 166 of 1000 seconds.
        assert_eq!(file[find(b"fcTL") + 24..][..4], [0, 166, 3, 232]);
        assert_eq!(png::decode(&file).unwrap(), frames[0]);
    }
}
