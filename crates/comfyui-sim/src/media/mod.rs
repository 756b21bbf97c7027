//! Real files out of nothing: pictures that say what made them, and the containers they travel in.
//!
//! Everything here is a pure function over bytes: no I/O, no clock, no randomness. Equal input gives equal
//! output, and no encoder holds more than a small multiple of its input. The encoders aim at files which
//! ordinary software decodes without a complaint, not at small ones; a test shows each kind to ffmpeg.
//!
//! | kind | what is inside |
//! |---|---|
//! | PNG, APNG, WebP | the picture, without loss |
//! | JPEG | the picture, 4:2:0 |
//! | GIF | the picture in 252 fixed colours, dithered |
//! | MP4 | H.264 without compression but for what did not change; FLAC |
//! | WebM | VP8 key frames; Opus silence |
//! | WAV, FLAC | the sound in 16 bits |
//! | MP3, Opus | silence of the same length |
//! | SVG, GLB, safetensors | a drawing, a cube, noise |
//!
//! Metadata go where ComfyUI puts them in each of these.

pub mod apng;
mod audio;
mod bits;
mod boxes;
pub mod card;
pub mod decode;
mod ebml;
mod error;
mod film;
pub mod flac;
mod font;
pub mod gif;
pub mod glb;
mod h264;
mod image;
pub mod jpeg;
pub mod mp3;
pub mod mp4;
pub mod opus;
pub mod png;
pub mod probe;
mod random;
pub mod safetensors;
pub mod svg;
mod tags;
mod vp8;
pub mod wav;
pub mod webm;
pub mod webp;
mod yuv;

pub use audio::Audio;
pub use card::Card;
pub use error::{DecodeError, EncodeError};
pub use image::{Channel, Image, Scaling};
