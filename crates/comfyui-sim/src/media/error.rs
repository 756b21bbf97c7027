//! Why a file could not be written or read.

/// Why an encoder refused its input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A film needs at least one picture.
    #[error("no frames to encode")]
    NoFrames,
    /// All pictures of a film have the size of the first.
    #[error("frame {index} is {width}x{height}, the first one is {first_width}x{first_height}")]
    MixedSizes {
        /// Which frame differs, from 0.
        index: usize,
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// Width of the first frame.
        first_width: u32,
        /// Height of the first frame.
        first_height: u32,
    },
    /// The format has no room for such a picture.
    #[error("{width}x{height} is too large for {format}, which ends at {limit}")]
    TooLarge {
        /// Name of the format.
        format: &'static str,
        /// Width asked for.
        width: u32,
        /// Height asked for.
        height: u32,
        /// The largest width or height of the format.
        limit: u32,
    },
    /// A frame rate that is not a positive finite number.
    #[error("a frame rate of {0} cannot be encoded")]
    FrameRate(String),
    /// A sample rate or channel count outside the format.
    #[error("{channels} channels at {sample_rate} Hz cannot be encoded as {format}")]
    Audio {
        /// Name of the format.
        format: &'static str,
        /// Number of channels.
        channels: usize,
        /// Samples per second.
        sample_rate: u32,
    },
    /// The library that writes the format gave up.
    #[error("cannot write {format}: {reason}")]
    Failed {
        /// Name of the format.
        format: &'static str,
        /// What it said.
        reason: String,
    },
}

impl EncodeError {
    pub(super) fn failed(format: &'static str, reason: impl ToString) -> Self {
        Self::Failed { format, reason: reason.to_string() }
    }
}

/// Why bytes could not be read as the medium they were said to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first bytes belong to no format known here.
    #[error("cannot identify the file format")]
    Unknown,
    /// The format was recognised, its contents are broken or cut off.
    #[error("broken {format} file: {reason}")]
    Broken {
        /// Name of the format.
        format: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A file that would need more memory than the reader is willing to give.
    #[error("{format} file of {width}x{height} is too large")]
    TooLarge {
        /// Name of the format.
        format: &'static str,
        /// Width in the header.
        width: u32,
        /// Height in the header.
        height: u32,
    },
}

impl DecodeError {
    pub(super) fn broken(format: &'static str, reason: impl ToString) -> Self {
        Self::Broken { format, reason: reason.to_string() }
    }
}
