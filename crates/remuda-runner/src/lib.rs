//! The loop that drives one ComfyUI: claim, place, submit, watch, collect, report.
//!
//! A [`source::Source`] is where tasks come from and go back to; the queue is the first. Live frames of running
//! tasks go to a [`frames::FrameHub`], never through the database.

pub mod frames;
pub mod preflight;
pub mod source;
pub mod wire;
