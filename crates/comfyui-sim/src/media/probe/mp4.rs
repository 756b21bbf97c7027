//! The tables of an MP4 or MOV file.

use super::bytes::Bytes;
use super::{AudioInfo, VideoInfo, checked, checked_audio};
use crate::media::DecodeError;

const FORMAT: &str = "MP4";

pub(super) fn video(bytes: &[u8]) -> Result<VideoInfo, DecodeError> {
    let tracks = tracks(bytes)?;
    let has_audio = tracks.iter().any(|track| track.handler == *b"soun");
    let track = find(&tracks, b"vide")?;
    let (frames, units) = track.times().ok_or_else(|| cut("the times of the frames"))?;
    let fps = f64::from(frames) * f64::from(track.timescale) / units as f64;
    let (width, height) = track.picture_size().ok_or_else(|| cut("the size of the picture"))?;
    checked(FORMAT, VideoInfo { width, height, frames, fps, has_audio })
}

pub(super) fn audio(bytes: &[u8]) -> Result<AudioInfo, DecodeError> {
    let tracks = tracks(bytes)?;
    let track = find(&tracks, b"soun")?;
    let seconds = track.duration as f64 / f64::from(track.timescale);
    // The sample entry: its header, then among others channels and rate. High rates are in the time scale only.
    let entry = Bytes(track.sample_entry.ok_or_else(|| cut("the description of the sound"))?);
    let channels = aac_channels(entry.0).or(entry.u16(24)).ok_or_else(|| cut("the number of channels"))?;
    let rate = entry.u16(32).filter(|rate| *rate > 0).unwrap_or(track.timescale);
    checked_audio(FORMAT, AudioInfo { sample_rate: rate, channels, seconds })
}

/// The number of channels of AAC, whose sample entry often says 2 whatever is inside.
fn aac_channels(entry: &[u8]) -> Option<u32> {
    let esds = Boxes(entry.get(36..)?).find(|(name, _)| name == b"esds")?.1;
    // Three descriptors, each in the one before: the stream, the decoder, and what is special to it.
    let stream = descriptor(esds.get(4..)?, 3)?;
    let decoder = descriptor(stream.get(3..)?, 4)?;
    let special = Bytes(descriptor(decoder.get(13..)?, 5)?);
    // Five bits of kind, four of the sample rate, four of channels.
    let channels = special.u16(0)? >> 3 & 15;
    (1..=7).contains(&channels).then_some(if channels == 7 { 8 } else { channels })
}

/// Contents of a descriptor with this tag; its size has seven bits in each byte.
fn descriptor(bytes: &[u8], tag: u8) -> Option<&[u8]> {
    let (first, mut rest) = bytes.split_first()?;
    let mut size = 0;
    for _ in 0..4 {
        let (byte, after) = rest.split_first()?;
        rest = after;
        size = size << 7 | usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    rest.get(..size).filter(|_| *first == tag)
}

fn cut(what: &str) -> DecodeError {
    DecodeError::broken(FORMAT, format!("{what} is missing"))
}

fn find<'t, 'a>(tracks: &'t [Track<'a>], handler: &[u8; 4]) -> Result<&'t Track<'a>, DecodeError> {
    let what = if handler == b"vide" { "a video track" } else { "a sound track" };
    tracks.iter().find(|track| track.handler == *handler).ok_or_else(|| cut(what))
}

struct Track<'a> {
    handler: [u8; 4],
    timescale: u32,
    duration: u64,
    /// The first entry of `stsd`, from its size on.
    sample_entry: Option<&'a [u8]>,
    /// Contents of `stts`.
    times: Option<&'a [u8]>,
}

impl Track<'_> {
    /// Number of samples and their duration together.
    fn times(&self) -> Option<(u32, u64)> {
        let table = Bytes(self.times?);
        let count = table.u32(4)? as usize;
        let (mut samples, mut units) = (0u32, 0u64);
        for entry in table.0.get(8..)?.chunks_exact(8).take(count) {
            let entry = Bytes(entry);
            let (run, duration) = (entry.u32(0)?, entry.u32(4)?);
            samples = samples.checked_add(run)?;
            units = units.checked_add(u64::from(run) * u64::from(duration))?;
        }
        Some((samples, units))
    }

    fn picture_size(&self) -> Option<(u32, u32)> {
        let entry = Bytes(self.sample_entry?);
        Some((entry.u16(32)?, entry.u16(34)?))
    }
}

fn tracks(bytes: &[u8]) -> Result<Vec<Track<'_>>, DecodeError> {
    let moov = child(bytes, b"moov").ok_or_else(|| cut("the table of contents (moov)"))?;
    Ok(Boxes(moov).filter(|(name, _)| name == b"trak").filter_map(|(_, trak)| track(trak)).collect())
}

fn track(trak: &[u8]) -> Option<Track<'_>> {
    let mdia = child(trak, b"mdia")?;
    let header = Bytes(child(mdia, b"mdhd")?);
    let (timescale, duration) = match header.0.first()? {
        0 => (header.u32(12)?, u64::from(header.u32(16)?)),
        _ => (header.u32(20)?, header.u64(24)?),
    };
    let stbl = child(child(mdia, b"minf")?, b"stbl")?;
    let sample_entry = child(stbl, b"stsd").and_then(|stsd| stsd.get(8..));
    Some(Track {
        handler: Bytes(child(mdia, b"hdlr")?).array(8)?,
        timescale,
        duration,
        sample_entry,
        times: child(stbl, b"stts"),
    })
}

fn child<'a>(bytes: &'a [u8], name: &[u8; 4]) -> Option<&'a [u8]> {
    Boxes(bytes).find(|(found, _)| found == name).map(|(_, contents)| contents)
}

/// The boxes side by side in some bytes, as name and contents.
struct Boxes<'a>(&'a [u8]);

impl<'a> Iterator for Boxes<'a> {
    type Item = ([u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = Bytes(self.0);
        let name = bytes.array(4)?;
        let (header, size) = match bytes.u32(0)? {
            // Up to the end of the file.
            0 => (8, self.0.len()),
            1 => (16, usize::try_from(bytes.u64(8)?).ok()?),
            size => (8, size as usize),
        };
        let contents = self.0.get(header..size)?;
        self.0 = &self.0[size..];
        Some((name, contents))
    }
}
