//! The tables of a WebM or other Matroska file, and a count of its blocks.

use super::bytes::Bytes;
use super::{AudioInfo, VideoInfo, checked, checked_audio};
use crate::media::DecodeError;
use crate::media::ebml::id;

const FORMAT: &str = "WebM";
const VIDEO: u64 = 1;
const AUDIO: u64 = 2;
/// Blocks with more to say about them than fits into a simple one.
const BLOCK_GROUP: u32 = 0xa0;
const BLOCK: u32 = 0xa1;

pub(super) fn video(bytes: &[u8]) -> Result<VideoInfo, DecodeError> {
    let file = File::read(bytes);
    let track = file.track(VIDEO)?;
    let frames = file.blocks(track.number);
    let fps = match track.frame_nanoseconds {
        0 => f64::from(frames) / file.seconds,
        nanoseconds => 1e9 / nanoseconds as f64,
    };
    let has_audio = file.tracks.iter().any(|track| track.kind == AUDIO);
    checked(FORMAT, VideoInfo { width: track.width, height: track.height, frames, fps, has_audio })
}

pub(super) fn audio(bytes: &[u8]) -> Result<AudioInfo, DecodeError> {
    let file = File::read(bytes);
    let track = file.track(AUDIO)?;
    let (sample_rate, channels) = (track.sample_rate as u32, track.channels);
    checked_audio(FORMAT, AudioInfo { sample_rate, channels, seconds: file.seconds })
}

struct File<'a> {
    segment: &'a [u8],
    seconds: f64,
    tracks: Vec<Track>,
}

#[derive(Default)]
struct Track {
    number: u64,
    kind: u64,
    frame_nanoseconds: u64,
    width: u32,
    height: u32,
    sample_rate: f64,
    channels: u32,
}

impl<'a> File<'a> {
    fn read(bytes: &'a [u8]) -> Self {
        let segment = child(bytes, id::SEGMENT).unwrap_or_default();
        let info = child(segment, id::INFO).unwrap_or_default();
        let scale = child(info, id::TIMESTAMP_SCALE).map_or(1_000_000, number);
        let duration = child(info, id::DURATION).and_then(float).unwrap_or(0.0);
        let tracks = child(segment, id::TRACKS).unwrap_or_default();
        let tracks = Elements(tracks).filter(|(id, _)| *id == id::TRACK_ENTRY);
        Self {
            segment,
            seconds: duration * scale as f64 / 1e9,
            tracks: tracks.map(|(_, entry)| Track::read(entry)).collect(),
        }
    }

    fn track(&self, kind: u64) -> Result<&Track, DecodeError> {
        let what = if kind == VIDEO { "a video track is missing" } else { "a sound track is missing" };
        self.tracks.iter().find(|track| track.kind == kind).ok_or_else(|| DecodeError::broken(FORMAT, what))
    }

    /// How many blocks a track has.
    fn blocks(&self, track: u64) -> u32 {
        let of_track = |block: &[u8]| variable(block).is_some_and(|(number, _)| number == track);
        let mut count = 0;
        for (_, cluster) in Elements(self.segment).filter(|(id, _)| *id == id::CLUSTER) {
            for (id, contents) in Elements(cluster) {
                let block = match id {
                    id::SIMPLE_BLOCK => Some(contents),
                    BLOCK_GROUP => child(contents, BLOCK),
                    _ => None,
                };
                count += u32::from(block.is_some_and(of_track));
            }
        }
        count
    }
}

impl Track {
    fn read(entry: &[u8]) -> Self {
        let mut track = Self { channels: 1, sample_rate: 8000.0, ..Self::default() };
        for (id, contents) in Elements(entry) {
            match id {
                id::TRACK_NUMBER => track.number = number(contents),
                id::TRACK_TYPE => track.kind = number(contents),
                id::DEFAULT_DURATION => track.frame_nanoseconds = number(contents),
                id::VIDEO => {
                    let side =
                        |id| child(contents, id).map_or(0, |side| u32::try_from(number(side)).unwrap_or(0));
                    (track.width, track.height) = (side(id::WIDTH), side(id::HEIGHT));
                }
                id::AUDIO => {
                    let rate = child(contents, id::SAMPLE_RATE).and_then(float);
                    track.sample_rate = rate.unwrap_or(track.sample_rate);
                    let channels = child(contents, id::CHANNELS).map(number);
                    track.channels = channels.map_or(1, |channels| u32::try_from(channels).unwrap_or(0));
                }
                _ => {}
            }
        }
        track
    }
}

fn child(bytes: &[u8], id: u32) -> Option<&[u8]> {
    Elements(bytes).find(|(found, _)| *found == id).map(|(_, contents)| contents)
}

fn number(contents: &[u8]) -> u64 {
    contents.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn float(contents: &[u8]) -> Option<f64> {
    let bytes = Bytes(contents);
    match contents.len() {
        4 => bytes.u32(0).map(f32::from_bits).map(f64::from),
        _ => bytes.u64(0).map(f64::from_bits),
    }
}

/// A number whose first bits tell its length: value and length.
fn variable(bytes: &[u8]) -> Option<(u64, usize)> {
    let length = bytes.first()?.leading_zeros() as usize + 1;
    let value = number(bytes.get(..length).filter(|_| length <= 8)?);
    Some((value & !(1 << (7 * length)), length))
}

/// The elements side by side in some bytes, as id and contents.
struct Elements<'a>(&'a [u8]);

impl<'a> Iterator for Elements<'a> {
    type Item = (u32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (id, size, rest) = self.header()?;
        let (contents, after) = match size {
            Some(size) => rest.split_at(size.min(rest.len())),
            None if id == id::CLUSTER => rest.split_at(cluster_size(rest)),
            None => (rest, &[][..]),
        };
        self.0 = after;
        Some((id, contents))
    }
}

impl<'a> Elements<'a> {
    /// Id and size of the next element, and all bytes after them. Streams are written without knowing the size.
    fn header(&self) -> Option<(u32, Option<usize>, &'a [u8])> {
        let id_length = self.0.first()?.leading_zeros() as usize + 1;
        let id = number(self.0.get(..id_length).filter(|_| id_length <= 4)?) as u32;
        let rest = &self.0[id_length..];
        let (size, size_length) = variable(rest)?;
        let unknown = size == (1 << (7 * size_length)) - 1;
        let size = if unknown { None } else { Some(usize::try_from(size).ok()?) };
        Some((id, size, &rest[size_length..]))
    }
}

/// A cluster of unknown size goes up to the next one, or to the tables after it.
fn cluster_size(rest: &[u8]) -> usize {
    let mut elements = Elements(rest);
    loop {
        let before = elements.0.len();
        match elements.header() {
            Some((id::CLUSTER | id::CUES | id::TAGS, ..)) => return rest.len() - before,
            None => return rest.len(),
            Some(_) => elements.next(),
        };
    }
}
