//! What all encoders of moving pictures ask of their frames.

use super::{EncodeError, Image};

/// Frames of one size, at a rate that makes sense.
#[derive(Debug, Clone, Copy)]
pub(super) struct Film<'a> {
    pub(super) frames: &'a [Image],
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) fps: f64,
}

impl<'a> Film<'a> {
    /// Checks the frames against each other and against the largest side that `format` has room for.
    pub(super) fn new(
        frames: &'a [Image],
        fps: f64,
        format: &'static str,
        limit: u32,
    ) -> Result<Self, EncodeError> {
        let first = frames.first().ok_or(EncodeError::NoFrames)?;
        let (width, height) = (first.width(), first.height());
        if width > limit || height > limit {
            return Err(EncodeError::TooLarge { format, width, height, limit });
        }
        let differs = |frame: &Image| (frame.width(), frame.height()) != (width, height);
        if let Some(index) = frames.iter().position(differs) {
            return Err(EncodeError::MixedSizes {
                index,
                width: frames[index].width(),
                height: frames[index].height(),
                first_width: width,
                first_height: height,
            });
        }
        if !(0.001..=1000.0).contains(&fps) {
            return Err(EncodeError::FrameRate(fps.to_string()));
        }
        Ok(Self { frames, width, height, fps })
    }

    /// How long one frame stays, in whole milliseconds rounded down, as Pillow is told by ComfyUI.
    pub(super) fn milliseconds(&self) -> u32 {
        (1000.0 / self.fps) as u32
    }

    /// When a frame begins, in units of which a second has `scale`; rounded, so that errors do not add up.
    pub(super) fn start(&self, index: usize, scale: u32) -> u64 {
        (index as f64 * f64::from(scale) / self.fps).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn films_that_cannot_be_are_refused() {
        let frames = [Image::solid(4, 4, [0; 3]), Image::solid(4, 5, [0; 3])];
        assert_eq!(Film::new(&[], 1.0, "x", 9).unwrap_err(), EncodeError::NoFrames);
        let mixed = Film::new(&frames, 1.0, "x", 9).unwrap_err();
        assert_eq!(mixed.to_string(), "frame 1 is 4x5, the first one is 4x4");
        let large = Film::new(&frames, 1.0, "x", 3).unwrap_err();
        assert_eq!(large.to_string(), "4x4 is too large for x, which ends at 3");
        for fps in [0.0, -1.0, f64::NAN, f64::INFINITY, 1001.0] {
            assert!(matches!(Film::new(&frames[..1], fps, "x", 9), Err(EncodeError::FrameRate(_))), "{fps}");
        }
    }

    #[test]
    fn rounding_does_not_add_up() {
        let frames = vec![Image::solid(1, 1, [0; 3]); 2];
        let film = Film::new(&frames, 30.0, "x", 9).unwrap();
        assert_eq!([0, 1, 2, 3, 30].map(|index| film.start(index, 100)), [0, 3, 7, 10, 100]);
        assert_eq!(film.milliseconds(), 33);
    }
}
