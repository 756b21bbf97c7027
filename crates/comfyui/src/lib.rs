//! A ComfyUI client that survives the real ComfyUI.

pub mod lenient;
pub mod workflow;
