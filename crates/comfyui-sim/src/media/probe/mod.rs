//! What a video or a piece of sound is, without decoding it.

mod bytes;
mod matroska;
mod mp4;
mod pictures;
mod sound;

use super::DecodeError;

/// Size, length and rate of a video.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VideoInfo {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Number of frames, at least 1.
    pub frames: u32,
    /// Frames per second.
    pub fps: f64,
    /// Whether there is a sound track.
    pub has_audio: bool,
}

/// Rate and length of a piece of sound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AudioInfo {
    /// Samples per second and channel.
    pub sample_rate: u32,
    /// Number of channels.
    pub channels: u32,
    /// Length in seconds.
    pub seconds: f64,
}

/// Reads the headers of an MP4, WebM (or other Matroska), GIF or animated WebP file.
///
/// An MP4 must have its tables in one place, not in fragments.
pub fn video(bytes: &[u8]) -> Result<VideoInfo, DecodeError> {
    match kind(bytes) {
        Some(Kind::Mp4) => mp4::video(bytes),
        Some(Kind::Matroska) => matroska::video(bytes),
        Some(Kind::Gif) => pictures::gif(bytes),
        Some(Kind::Webp) => pictures::webp(bytes),
        _ => Err(DecodeError::Unknown),
    }
}

/// Reads the headers of a WAV, FLAC, MP3, Ogg (Opus or Vorbis), MP4 or WebM file.
pub fn audio(bytes: &[u8]) -> Result<AudioInfo, DecodeError> {
    match kind(bytes) {
        Some(Kind::Wav) => sound::wav(bytes),
        Some(Kind::Flac) => sound::flac(bytes),
        Some(Kind::Mp3) => sound::mp3(bytes),
        Some(Kind::Ogg) => sound::ogg(bytes),
        Some(Kind::Mp4) => mp4::audio(bytes),
        Some(Kind::Matroska) => matroska::audio(bytes),
        _ => Err(DecodeError::Unknown),
    }
}

enum Kind {
    Mp4,
    Matroska,
    Gif,
    Webp,
    Wav,
    Flac,
    Mp3,
    Ogg,
}

fn kind(bytes: &[u8]) -> Option<Kind> {
    Some(match bytes {
        [_, _, _, _, b'f', b't', b'y', b'p', ..] | [_, _, _, _, b'm', b'o', b'o', b'v', ..] => Kind::Mp4,
        [0x1a, 0x45, 0xdf, 0xa3, ..] => Kind::Matroska,
        [b'G', b'I', b'F', b'8', ..] => Kind::Gif,
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Kind::Webp,
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => Kind::Wav,
        [b'f', b'L', b'a', b'C', ..] => Kind::Flac,
        [b'O', b'g', b'g', b'S', ..] => Kind::Ogg,
        [b'I', b'D', b'3', ..] => Kind::Mp3,
        [0xff, second, ..] if second & 0xe0 == 0xe0 => Kind::Mp3,
        _ => return None,
    })
}

/// A video from what its headers say, unless that makes no sense.
fn checked(format: &'static str, info: VideoInfo) -> Result<VideoInfo, DecodeError> {
    let sensible =
        info.width > 0 && info.height > 0 && info.frames > 0 && info.fps.is_finite() && info.fps > 0.0;
    if sensible { Ok(info) } else { Err(DecodeError::broken(format, "no size, no frames or no times")) }
}

/// Sound from what its headers say, unless that makes no sense.
fn checked_audio(format: &'static str, info: AudioInfo) -> Result<AudioInfo, DecodeError> {
    let sensible =
        info.sample_rate > 0 && info.channels > 0 && info.seconds.is_finite() && info.seconds >= 0.0;
    if sensible { Ok(info) } else { Err(DecodeError::broken(format, "no sample rate or no channels")) }
}

#[cfg(test)]
mod tests {
    use super::super::{Audio, Image, flac, gif, mp3, mp4, opus, wav, webm, webp};
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    fn frames() -> Vec<Image> {
        (0..6).map(|index| Image::solid(34, 18, [40 * index, 9, 9])).collect()
    }

    fn films() -> Vec<(Vec<u8>, bool)> {
        let (frames, tone) = (frames(), Audio::sine(8000, 2, 0.5, 440.0));
        vec![
            (mp4::encode(&frames, 12.0, None, &[("prompt", "{}")]).unwrap(), false),
            (mp4::encode(&frames, 12.0, Some(&tone), &[]).unwrap(), true),
            (webm::encode(&frames, 12.0, None, &[("prompt", "{}")]).unwrap(), false),
            (webm::encode(&frames, 12.0, Some(&tone), &[]).unwrap(), true),
            (gif::encode(&frames, 12.0).unwrap(), false),
            (webp::encode_animated(&frames, 12.0, &[("prompt", "{}")]).unwrap(), false),
        ]
    }

    fn sounds() -> Vec<Vec<u8>> {
        let tone = Audio::sine(8000, 2, 0.5, 440.0);
        vec![
            wav::encode(&tone).unwrap(),
            flac::encode(&tone, &[("prompt", "{}")]).unwrap(),
            mp3::encode(&tone, &[("prompt", "{}")]).unwrap(),
            opus::encode(&tone, &[("prompt", "{}")]).unwrap(),
            mp4::encode(&frames(), 12.0, Some(&tone), &[]).unwrap(),
            webm::encode(&frames(), 12.0, Some(&tone), &[]).unwrap(),
        ]
    }

    #[test]
    fn our_own_films_are_known() {
        for (file, has_audio) in films() {
            let info = video(&file).unwrap();
            assert_eq!(
                (info.width, info.height, info.frames, info.has_audio),
                (34, 18, 6, has_audio),
                "{info:?}"
            );
            assert!((info.fps - 12.0).abs() < 0.1, "{info:?}");
        }
    }

    #[test]
    fn our_own_sounds_are_known() {
        for file in sounds() {
            let info = audio(&file).unwrap();
            assert_eq!(info.channels, 2, "{info:?}");
            assert!([8000, 48_000].contains(&info.sample_rate), "{info:?}");
            assert!((info.seconds - 0.5).abs() < 0.02, "{info:?}");
        }
    }

    #[test]
    fn silent_films_have_no_sound_and_sounds_no_pictures() {
        for (file, has_audio) in films() {
            assert_eq!(audio(&file).is_ok(), has_audio);
        }
        assert_eq!(video(&sounds()[0]), Err(DecodeError::Unknown));
        assert_eq!(audio(b"hello"), Err(DecodeError::Unknown));
    }

    proptest! {
        /// Whatever was uploaded: an answer or an error, and soon.
        #[test]
        fn damaged_files_are_no_danger(
            which in 0usize..12, cut in 0.0..1.0f64, places in prop::collection::vec((0.0..1.0f64, any::<u8>()), 0..6),
        ) {
            static FILES: LazyLock<Vec<Vec<u8>>> =
                LazyLock::new(|| films().into_iter().map(|(file, _)| file).chain(sounds()).collect());
            let mut file = FILES[which].clone();
            for (place, value) in places {
                // Headers are at the beginning, and tables at the end.
                let length = file.len();
                let near = (place * 600.0) as usize;
                file[if value % 2 == 0 { near.min(length - 1) } else { length.saturating_sub(near + 1) }] = value;
            }
            file.truncate((file.len() as f64 * (1.0 - cut * cut * cut)) as usize);
            let _ = (video(&file), audio(&file));
        }

        #[test]
        fn any_bytes_are_no_danger(mut bytes in prop::collection::vec(any::<u8>(), 0..300), start in 0usize..9) {
            let starts: [&[u8]; 9] = [
                b"\0\0\0\x08ftyp", b"\x1a\x45\xdf\xa3", b"GIF89a", b"RIFF\0\0\0\0WEBP", b"RIFF\0\0\0\0WAVE", b"fLaC",
                b"OggS", b"ID3", b"\xff\xfb",
            ];
            bytes.splice(0..0, starts[start].iter().copied());
            let _ = (video(&bytes), audio(&bytes));
        }
    }
}
