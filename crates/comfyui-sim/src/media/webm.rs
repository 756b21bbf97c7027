//! WebM: VP8 pictures, and Opus silence where there is sound.

use super::ebml::{Elements, id};
use super::film::Film;
use super::yuv::Planes;
use super::{Audio, EncodeError, Image, opus, tags, vp8};

/// VP8 has 14 bits for a side.
const LIMIT: u32 = 16_383;

const VIDEO: u8 = 1;
const SOUND: u8 = 2;
/// A block is placed relative to its cluster, in 16 bits of milliseconds.
const CLUSTER_MILLISECONDS: u64 = 2000;

/// A WebM file of all frames, with the metadata keys that ComfyUI writes (`prompt`, `workflow`).
///
/// The pictures are VP8 key frames, whatever codec a node asks for: encoders of VP9 and AV1 are far larger things.
/// Sound becomes Opus silence of the same length, see [`opus`]. Alpha is dropped.
pub fn encode(
    frames: &[Image],
    fps: f64,
    audio: Option<&Audio>,
    metadata: &[(&str, &str)],
) -> Result<Vec<u8>, EncodeError> {
    let film = Film::new(frames, fps, "WebM", LIMIT)?;
    let audio = audio.filter(|audio| !audio.is_empty());
    let mut out = Elements::default();
    out.put(id::HEADER, header);
    out.put(id::SEGMENT, |out| {
        let start = out.len();
        let mut seek = SeekHead::reserve(out);
        seek.here(out, start);
        out.put(id::INFO, |out| {
            // Times are in milliseconds.
            out.number(id::TIMESTAMP_SCALE, 1_000_000);
            out.float(id::DURATION, film.start(frames.len(), 1000) as f64);
            out.text(id::MUXING_APP, tags::VENDOR);
            out.text(id::WRITING_APP, tags::VENDOR);
        });
        seek.here(out, start);
        out.put(id::TRACKS, |out| {
            video_track(out, &film);
            if let Some(audio) = audio {
                sound_track(out, audio);
            }
        });
        seek.here(out, start);
        out.put(id::TAGS, |out| tag(out, metadata));
        let clusters = clusters(out, start, &film, audio);
        seek.here(out, start);
        out.put(id::CUES, |out| clusters.iter().for_each(|cluster| cue(out, *cluster)));
    });
    Ok(out.finish())
}

fn header(out: &mut Elements) {
    out.number(id::VERSION, 1);
    out.number(id::READ_VERSION, 1);
    out.number(id::MAX_ID_LENGTH, 4);
    out.number(id::MAX_SIZE_LENGTH, 8);
    out.text(id::DOC_TYPE, "webm");
    out.number(id::DOC_TYPE_VERSION, 4);
    out.number(id::DOC_TYPE_READ_VERSION, 2);
}

/// The table at the beginning that says where the other tables are.
struct SeekHead {
    /// Where the numbers stand that are to be filled in.
    free: std::vec::IntoIter<usize>,
}

impl SeekHead {
    fn reserve(out: &mut Elements) -> Self {
        let mut free = Vec::new();
        out.put(id::SEEK_HEAD, |out| {
            for target in [id::INFO, id::TRACKS, id::TAGS, id::CUES] {
                out.put(id::SEEK, |out| {
                    out.put(id::SEEK_ID, |out| out.bytes(&target.to_be_bytes()));
                    free.push(out.len());
                    out.number(id::SEEK_POSITION, 0);
                });
            }
        });
        Self { free: free.into_iter() }
    }

    /// Notes that the next table, in the order of `reserve`, begins here.
    fn here(&mut self, out: &mut Elements, segment: usize) {
        let position = (out.len() - segment) as u64;
        if let Some(free) = self.free.next() {
            out.overwrite_number(free, id::SEEK_POSITION, position);
        }
    }
}

fn video_track(out: &mut Elements, film: &Film<'_>) {
    out.put(id::TRACK_ENTRY, |out| {
        out.number(id::TRACK_NUMBER, VIDEO.into());
        out.number(id::TRACK_UID, VIDEO.into());
        out.number(id::TRACK_TYPE, 1);
        out.number(id::LACING, 0);
        out.number(id::DEFAULT_DURATION, (1e9 / film.fps).round() as u64);
        out.text(id::CODEC_ID, "V_VP8");
        out.put(id::VIDEO, |out| {
            out.number(id::WIDTH, film.width.into());
            out.number(id::HEIGHT, film.height.into());
        });
    });
}

fn sound_track(out: &mut Elements, audio: &Audio) {
    out.put(id::TRACK_ENTRY, |out| {
        out.number(id::TRACK_NUMBER, SOUND.into());
        out.number(id::TRACK_UID, SOUND.into());
        out.number(id::TRACK_TYPE, 2);
        out.number(id::LACING, 0);
        out.text(id::CODEC_ID, "A_OPUS");
        out.put(id::CODEC_PRIVATE, |out| out.bytes(&opus::head(audio)));
        // In nanoseconds: what the decoder skips, and how far before a place it must begin.
        out.number(id::CODEC_DELAY, opus::PRE_SKIP * 1_000_000 / 48);
        out.number(id::SEEK_PRE_ROLL, 80_000_000);
        out.put(id::AUDIO, |out| {
            out.float(id::SAMPLE_RATE, 48_000.0);
            out.number(id::CHANNELS, opus::channels(audio).into());
        });
    });
}

fn tag(out: &mut Elements, metadata: &[(&str, &str)]) {
    out.put(id::TAG, |out| {
        // No target: the whole file.
        out.put(id::TARGETS, |_| ());
        for (key, value) in metadata.iter().chain(&[("ENCODER", tags::VENDOR)]) {
            out.put(id::SIMPLE_TAG, |out| {
                out.text(id::TAG_NAME, key);
                out.text(id::TAG_STRING, value);
            });
        }
    });
}

/// Writes pictures and sound in order of time; returns time and place of each cluster.
fn clusters(out: &mut Elements, segment: usize, film: &Film<'_>, audio: Option<&Audio>) -> Vec<(u64, u64)> {
    let mut clusters = Vec::new();
    let pictures = (0..film.frames.len()).map(|index| (film.start(index, 1000), VIDEO, index));
    let packets = audio.map_or(0, opus::packets);
    let sounds = (0..packets).map(|index| (index * opus::PACKET / 48, SOUND, index as usize));
    let mut blocks: Vec<(u64, u8, usize)> = pictures.chain(sounds).collect();
    blocks.sort_unstable();
    let silence = audio.map(opus::silence).unwrap_or_default();
    let mut rest = blocks.as_slice();
    while let Some(&(start, ..)) = rest.first() {
        let count = rest.partition_point(|(time, ..)| *time < start + CLUSTER_MILLISECONDS);
        let (now, later) = rest.split_at(count);
        rest = later;
        clusters.push((start, (out.len() - segment) as u64));
        out.put(id::CLUSTER, |out| {
            out.number(id::TIMESTAMP, start);
            for &(time, track, index) in now {
                let offset = (time - start) as u16;
                match track {
                    VIDEO => {
                        let planes = Planes::new(&film.frames[index]);
                        block(
                            out,
                            track,
                            offset,
                            &vp8::key_frame(&planes, film.width as u16, film.height as u16),
                        );
                    }
                    _ => block(out, track, offset, &silence),
                }
            }
        });
    }
    clusters
}

fn block(out: &mut Elements, track: u8, offset: u16, data: &[u8]) {
    const KEY_FRAME: u8 = 0x80;
    out.put(id::SIMPLE_BLOCK, |out| {
        out.bytes(&[0x80 | track]);
        out.bytes(&offset.to_be_bytes());
        out.bytes(&[KEY_FRAME]);
        out.bytes(data);
    });
}

fn cue(out: &mut Elements, (time, place): (u64, u64)) {
    out.put(id::CUE_POINT, |out| {
        out.number(id::CUE_TIME, time);
        out.put(id::CUE_TRACK_POSITIONS, |out| {
            out.number(id::CUE_TRACK, VIDEO.into());
            out.number(id::CUE_CLUSTER_POSITION, place);
        });
    });
}
