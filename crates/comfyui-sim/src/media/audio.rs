//! Sound as ComfyUI's nodes hand it on: float samples, one list per channel.

/// Samples between -1 and 1, one list per channel.
///
/// Invariant: at least one channel, all of them equally long, a sample rate of at least 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Audio {
    sample_rate: u32,
    channels: Vec<Vec<f32>>,
}

impl Audio {
    /// Sound from its samples. `None` without a channel, with channels of unequal length or a sample rate of 0.
    pub fn new(sample_rate: u32, channels: Vec<Vec<f32>>) -> Option<Self> {
        let length = channels.first()?.len();
        let fits = sample_rate > 0 && channels.iter().all(|channel| channel.len() == length);
        fits.then_some(Self { sample_rate, channels })
    }

    /// Silence of a length in seconds.
    pub fn silence(sample_rate: u32, channels: usize, seconds: f64) -> Self {
        Self::from_fn(sample_rate, channels, seconds, |_| 0.0)
    }

    /// A tone of a length in seconds, at half of full loudness, the same on every channel.
    pub fn sine(sample_rate: u32, channels: usize, seconds: f64, frequency: f64) -> Self {
        let step = std::f64::consts::TAU * frequency / f64::from(sample_rate.max(1));
        Self::from_fn(sample_rate, channels, seconds, |index| (0.5 * (step * index as f64).sin()) as f32)
    }

    fn from_fn(sample_rate: u32, channels: usize, seconds: f64, sample: impl Fn(usize) -> f32) -> Self {
        let sample_rate = sample_rate.max(1);
        let length = (seconds.max(0.0) * f64::from(sample_rate)).round() as usize;
        let one: Vec<f32> = (0..length).map(sample).collect();
        Self { sample_rate, channels: vec![one; channels.max(1)] }
    }

    /// Samples per second and channel.
    pub fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// The samples of every channel.
    pub fn channels(&self) -> &[Vec<f32>] {
        &self.channels
    }

    /// Samples per channel.
    pub fn len(&self) -> usize {
        self.channels.first().map_or(0, Vec::len)
    }

    /// Whether there is not a single sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        self.len() as f64 / f64::from(self.sample_rate)
    }

    /// The beginning, at most `length` samples per channel.
    pub fn first(&self, length: usize) -> Self {
        let channels = self.channels.iter().map(|channel| channel[..length.min(channel.len())].to_vec());
        Self { sample_rate: self.sample_rate, channels: channels.collect() }
    }

    /// All samples as 16 bit numbers, channel by channel within each moment.
    pub(super) fn interleaved_i16(&self) -> impl Iterator<Item = i16> + '_ {
        (0..self.len()).flat_map(|index| self.channels.iter().map(move |channel| to_i16(channel[index])))
    }
}

/// A sample as a 16 bit number; NaN is silence.
pub(super) fn to_i16(sample: f32) -> i16 {
    (sample.clamp(-1.0, 1.0) * 32767.0).round() as i16
}
