//! What a video or a piece of sound is, without decoding it.

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

/// Reads the header of an MP4, WebM, GIF or animated WebP file.
pub fn video(bytes: &[u8]) -> Result<VideoInfo, DecodeError> {
    let _ = bytes;
    Err(DecodeError::Unknown)
}

/// Reads the header of a WAV, FLAC, MP3, Ogg Opus, MP4 or WebM file.
pub fn audio(bytes: &[u8]) -> Result<AudioInfo, DecodeError> {
    let _ = bytes;
    Err(DecodeError::Unknown)
}
