//! Animated pictures taken for videos.

use super::{VideoInfo, checked};
use crate::media::DecodeError;

/// What browsers and ffmpeg show a GIF with that names no times.
const GIF_FPS: f64 = 10.0;

pub(super) fn gif(bytes: &[u8]) -> Result<VideoInfo, DecodeError> {
    let broken = |error: ::gif::DecodingError| DecodeError::broken("GIF", error);
    let mut options = ::gif::DecodeOptions::new();
    options.skip_frame_decoding(true);
    let mut decoder = options.read_info(bytes).map_err(broken)?;
    let (mut frames, mut hundredths) = (0u32, 0u64);
    while let Some(frame) = decoder.next_frame_info().map_err(broken)? {
        frames += 1;
        hundredths += u64::from(frame.delay);
    }
    let fps = if hundredths == 0 { GIF_FPS } else { f64::from(frames) * 100.0 / hundredths as f64 };
    let (width, height) = (decoder.width().into(), decoder.height().into());
    checked("GIF", VideoInfo { width, height, frames, fps, has_audio: false })
}

pub(super) fn webp(bytes: &[u8]) -> Result<VideoInfo, DecodeError> {
    let decoder = image_webp::WebPDecoder::new(std::io::Cursor::new(bytes))
        .map_err(|error| DecodeError::broken("WebP", error))?;
    if !decoder.is_animated() {
        return Err(DecodeError::broken("WebP", "a still picture is no video"));
    }
    let (width, height) = decoder.dimensions();
    let (frames, milliseconds) = (decoder.num_frames(), decoder.loop_duration());
    let fps = f64::from(frames) * 1000.0 / milliseconds as f64;
    checked("WebP", VideoInfo { width, height, frames, fps, has_audio: false })
}
