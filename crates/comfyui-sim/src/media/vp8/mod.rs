//! VP8 key frames, after RFC 6386.
//!
//! Every frame stands alone. A macroblock is predicted as a whole from its neighbours, the difference is transformed
//! and coded with the probabilities that a key frame begins with. No loop filter, so what the decoder shows is exactly
//! what the next macroblock is predicted from.

mod blocks;
mod bool_coder;
mod key_frame;
mod tables;

pub(super) use key_frame::key_frame;
