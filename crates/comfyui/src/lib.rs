//! A ComfyUI client that survives the real ComfyUI.

#[cfg(test)]
mod arbitrary;
pub mod guard;
pub mod lenient;
pub mod object_info;
pub mod outputs;
pub mod workflow;
