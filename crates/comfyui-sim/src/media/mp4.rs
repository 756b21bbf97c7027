//! MP4: H.264 pictures, FLAC sound, and the metadata where ffmpeg looks for them.
//!
//! ```text
//! ftyp  free  mdat  moov
//!             |     what is where in mdat: one table per track
//!             a second of pictures, a second of sound, and so on
//! ```

use super::boxes::{Boxes, full};
use super::film::Film;
use super::yuv::Planes;
use super::{Audio, EncodeError, Image, flac, h264, tags};

/// Width and height have two bytes in the header; decoders give up far below that.
const LIMIT: u32 = 8192;
/// Units of a second in the header of the film.
const SCALE: u32 = 1000;

/// An MP4 file of all frames, with the metadata keys that ComfyUI writes (`prompt`, `workflow`).
///
/// The pictures are H.264 without compression, see the size it takes: 1.5 bytes for each pixel that changed. An odd
/// width or height grows by one, repeating the last pixel, since 4:2:0 has none. Sound is FLAC, and ends with the
/// pictures if it is longer, as ComfyUI cuts it. Alpha is dropped.
pub fn encode(
    frames: &[Image],
    fps: f64,
    audio: Option<&Audio>,
    metadata: &[(&str, &str)],
) -> Result<Vec<u8>, EncodeError> {
    let film = Film::new(frames, fps, "MP4", LIMIT)?;
    let audio = audio.filter(|audio| !audio.is_empty()).map(|audio| cut(audio, &film));
    let sound = audio.as_ref().map(flac::Stream::new).transpose()?;

    let mut out = Boxes::default();
    out.put(b"ftyp", |out| out.bytes(b"isom\0\0\x02\0isomiso2avc1mp41"));
    // Room for a longer size, should the next box need one.
    out.put(b"free", |_| ());
    let mdat = out.len();
    out.bytes(b"\0\0\0\0mdat");
    let video = Track { timescale: (fps * 1000.0).round() as u32, ..Track::default() };
    let sound_scale = audio.as_ref().map_or(1, Audio::sample_rate);
    let mut tracks = Tracks { video, sound: Track { timescale: sound_scale, ..Track::default() } };
    tracks.write(&mut out, &film, audio.as_ref(), sound.as_ref());
    out.close_large(mdat);

    out.put(b"moov", |out| {
        let seconds = tracks.video.seconds().max(tracks.sound.seconds());
        out.put(b"mvhd", |out| movie_header(out, seconds));
        track(
            out,
            &tracks.video,
            b"vide",
            &Kind::Video { width: even(film.width), height: even(film.height) },
        );
        if let (Some(audio), Some(stream)) = (&audio, &sound) {
            track(out, &tracks.sound, b"soun", &Kind::Sound { audio, stream });
        }
        metadata_box(out, metadata);
    });
    Ok(out.finish())
}

fn even(side: u32) -> u32 {
    side.next_multiple_of(2)
}

fn cut(audio: &Audio, film: &Film<'_>) -> Audio {
    let length = film.frames.len() as f64 / film.fps * f64::from(audio.sample_rate());
    audio.first(length.ceil() as usize)
}

#[derive(Default)]
struct Track {
    timescale: u32,
    /// Size and duration of each sample.
    samples: Vec<(u32, u32)>,
    /// Numbers of the samples that stand alone, from 1.
    keys: Vec<u32>,
    /// Place of each run of samples in the file, and how many they are.
    chunks: Vec<(u64, u32)>,
    /// Of all samples together.
    duration: u64,
}

impl Track {
    fn seconds(&self) -> f64 {
        self.duration as f64 / f64::from(self.timescale.max(1))
    }

    fn sample(&mut self, size: usize, duration: usize) {
        self.samples.push((size as u32, duration as u32));
        self.duration += duration as u64;
        if let Some((_, count)) = self.chunks.last_mut() {
            *count += 1;
        }
    }
}

struct Tracks {
    video: Track,
    sound: Track,
}

impl Tracks {
    fn write(
        &mut self,
        out: &mut Boxes,
        film: &Film<'_>,
        audio: Option<&Audio>,
        sound: Option<&flac::Stream>,
    ) {
        let mut encoder = h264::Encoder::default();
        let mut pictures = film.frames.iter();
        let mut sounds = sound.map(|stream| stream.frames.iter()).unwrap_or_default();
        let mut left = audio.map_or(0, Audio::len);
        let mut second = 1.0;
        while pictures.len() > 0 || sounds.len() > 0 {
            self.video.chunks.push((out.len() as u64, 0));
            while self.video.seconds() < second
                && let Some(picture) = pictures.next()
            {
                let frame = encoder.frame(Planes::new(picture));
                out.bytes(&(frame.nal.len() as u32).to_be_bytes());
                out.bytes(&frame.nal);
                self.video.sample(frame.nal.len() + 4, 1000);
                if frame.key {
                    self.video.keys.push(self.video.samples.len() as u32);
                }
            }
            self.sound.chunks.push((out.len() as u64, 0));
            while self.sound.seconds() < second
                && let Some(frame) = sounds.next()
            {
                out.bytes(frame);
                let duration = left.min(flac::BLOCK);
                left -= duration;
                self.sound.sample(frame.len(), duration);
            }
            second += 1.0;
        }
        for track in [&mut self.video, &mut self.sound] {
            track.chunks.retain(|(_, count)| *count > 0);
        }
    }
}

enum Kind<'a> {
    Video { width: u32, height: u32 },
    Sound { audio: &'a Audio, stream: &'a flac::Stream },
}

/// No turning, no scaling.
const MATRIX: [u32; 9] = [0x1_0000, 0, 0, 0, 0x1_0000, 0, 0, 0, 0x4000_0000];

fn movie_header(out: &mut Boxes, seconds: f64) {
    full(out, 0, 0);
    let duration = (seconds * f64::from(SCALE)).round() as u32;
    out.u32s(&[0, 0, SCALE, duration, 0x1_0000, 0x0100_0000, 0, 0]);
    out.u32s(&MATRIX);
    out.u32s(&[0; 6]);
    // The number that the next track would get.
    out.u32s(&[3]);
}

fn track(out: &mut Boxes, track: &Track, handler: &[u8; 4], kind: &Kind<'_>) {
    out.put(b"trak", |out| {
        out.put(b"tkhd", |out| {
            full(out, 0, 3);
            let duration = (track.seconds() * f64::from(SCALE)).round() as u32;
            let (id, volume, width, height) = match kind {
                Kind::Video { width, height } => (1, 0, *width, *height),
                Kind::Sound { .. } => (2, 0x0100_0000, 0, 0),
            };
            out.u32s(&[0, 0, id, 0, duration, 0, 0, u32::from(id == 2), volume]);
            out.u32s(&MATRIX);
            out.u32s(&[width << 16, height << 16]);
        });
        out.put(b"mdia", |out| {
            out.put(b"mdhd", |out| {
                full(out, 1, 0);
                out.u64s(&[0, 0]);
                out.u32s(&[track.timescale]);
                out.u64s(&[track.duration]);
                // The language is undetermined.
                out.u32s(&[0x55c4_0000]);
            });
            out.put(b"hdlr", |out| {
                full(out, 0, 0);
                out.u32s(&[0]);
                out.bytes(handler);
                out.u32s(&[0; 3]);
                out.bytes(tags::VENDOR.as_bytes());
                out.bytes(&[0]);
            });
            out.put(b"minf", |out| {
                match kind {
                    Kind::Video { .. } => out.put(b"vmhd", |out| {
                        full(out, 0, 1);
                        out.u32s(&[0; 2]);
                    }),
                    Kind::Sound { .. } => out.put(b"smhd", |out| {
                        full(out, 0, 0);
                        out.u32s(&[0]);
                    }),
                }
                // The samples are in this file.
                out.put(b"dinf", |out| {
                    out.put(b"dref", |out| {
                        full(out, 0, 0);
                        out.u32s(&[1]);
                        out.put(b"url ", |out| full(out, 0, 1));
                    });
                });
                out.put(b"stbl", |out| sample_tables(out, track, kind));
            });
        });
    });
}

fn sample_tables(out: &mut Boxes, track: &Track, kind: &Kind<'_>) {
    out.put(b"stsd", |out| {
        full(out, 0, 0);
        out.u32s(&[1]);
        match kind {
            Kind::Video { width, height } => video_entry(out, *width, *height),
            Kind::Sound { audio, stream } => sound_entry(out, audio, stream),
        }
    });
    let durations = runs(track.samples.iter().map(|(_, duration)| *duration));
    out.put(b"stts", |out| table(out, &durations));
    if !track.keys.is_empty() {
        out.put(b"stss", |out| {
            full(out, 0, 0);
            out.u32s(&[track.keys.len() as u32]);
            out.u32s(&track.keys);
        });
    }
    out.put(b"stsc", |out| {
        // First chunk with that many samples each, from 1.
        let mut first = 1;
        let mut entries = Vec::new();
        for [chunks, samples] in runs(track.chunks.iter().map(|(_, count)| *count)) {
            entries.push([first, samples, 1]);
            first += chunks;
        }
        table(out, &entries);
    });
    out.put(b"stsz", |out| {
        full(out, 0, 0);
        out.u32s(&[0, track.samples.len() as u32]);
        track.samples.iter().for_each(|(size, _)| out.u32s(&[*size]));
    });
    if track.chunks.iter().all(|(place, _)| u32::try_from(*place).is_ok()) {
        let places: Vec<[u32; 1]> = track.chunks.iter().map(|(place, _)| [*place as u32]).collect();
        out.put(b"stco", |out| table(out, &places));
    } else {
        out.put(b"co64", |out| {
            full(out, 0, 0);
            out.u32s(&[track.chunks.len() as u32]);
            track.chunks.iter().for_each(|(place, _)| out.u64s(&[*place]));
        });
    }
}

/// A number of entries, then the entries.
fn table<const N: usize>(out: &mut Boxes, entries: &[[u32; N]]) {
    full(out, 0, 0);
    out.u32s(&[entries.len() as u32]);
    out.u32s(entries.as_flattened());
}

/// How often each value comes in a row.
fn runs(values: impl Iterator<Item = u32>) -> Vec<[u32; 2]> {
    let mut runs: Vec<[u32; 2]> = Vec::new();
    for value in values {
        match runs.last_mut() {
            Some([count, same]) if *same == value => *count += 1,
            _ => runs.push([1, value]),
        }
    }
    runs
}

fn video_entry(out: &mut Boxes, width: u32, height: u32) {
    out.put(b"avc1", |out| {
        out.u32s(&[0, 1, 0, 0, 0, 0, (width << 16) | height, 0x0048_0000, 0x0048_0000, 0]);
        // One frame per sample, a name of 32 bytes, 24 bits of colour.
        out.bytes(&[0, 1]);
        out.bytes(&[0; 32]);
        out.bytes(&[0, 0x18, 0xff, 0xff]);
        out.put(b"avcC", |out| {
            out.bytes(&[1]);
            out.bytes(&h264::profile(width, height));
            // Lengths of four bytes; one parameter set of each kind.
            out.bytes(&[0xff, 0xe1]);
            let (sequence, picture) = (h264::sequence_parameters(width, height), h264::picture_parameters());
            out.bytes(&(sequence.len() as u16).to_be_bytes());
            out.bytes(&sequence);
            out.bytes(&[1]);
            out.bytes(&(picture.len() as u16).to_be_bytes());
            out.bytes(&picture);
        });
        out.put(b"colr", |out| out.bytes(b"nclx\0\x06\0\x06\0\x06\0"));
    });
}

fn sound_entry(out: &mut Boxes, audio: &Audio, stream: &flac::Stream) {
    out.put(b"fLaC", |out| {
        let channels = audio.channels().len() as u32;
        // A rate beyond 16 bits is told by the FLAC header alone.
        let rate = u16::try_from(audio.sample_rate()).unwrap_or(0);
        out.u32s(&[0, 1, 0, 0, (channels << 16) | 16, 0, u32::from(rate) << 16]);
        out.put(b"dfLa", |out| {
            full(out, 0, 0);
            out.bytes(&[0x80, 0, 0, 34]);
            out.bytes(&stream.info);
        });
    });
}

/// Free keys and values, as ffmpeg writes them with `use_metadata_tags`.
fn metadata_box(out: &mut Boxes, metadata: &[(&str, &str)]) {
    if metadata.is_empty() {
        return;
    }
    out.put(b"udta", |out| {
        out.put(b"meta", |out| {
            full(out, 0, 0);
            out.put(b"hdlr", |out| {
                full(out, 0, 0);
                out.bytes(b"\0\0\0\0mdta");
                out.u32s(&[0; 3]);
                out.bytes(&[0]);
            });
            out.put(b"keys", |out| {
                full(out, 0, 0);
                out.u32s(&[metadata.len() as u32]);
                for (key, _) in metadata {
                    out.put(b"mdta", |out| out.bytes(key.as_bytes()));
                }
            });
            out.put(b"ilst", |out| {
                for (number, (_, value)) in (1u32..).zip(metadata) {
                    out.put(&number.to_be_bytes(), |out| {
                        out.put(b"data", |out| {
                            // The kind of value: UTF-8.
                            out.u32s(&[1, 0]);
                            out.bytes(value.as_bytes());
                        });
                    });
                }
            });
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_in_a_row_are_counted() {
        assert_eq!(runs([5, 5, 5, 2, 5].into_iter()), [[3, 5], [1, 2], [1, 5]]);
        assert!(runs(std::iter::empty()).is_empty());
    }

    #[test]
    fn equal_input_gives_equal_files() {
        let frames = vec![Image::solid(33, 17, [1, 2, 3]); 3];
        let audio = Audio::sine(8000, 1, 9.0, 440.0);
        let once = encode(&frames, 24.0, Some(&audio), &[("prompt", "{}")]).unwrap();
        assert_eq!(once, encode(&frames, 24.0, Some(&audio), &[("prompt", "{}")]).unwrap());
        assert_eq!(&once[4..12], b"ftypisom");
    }
}
