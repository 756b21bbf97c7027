//! A ComfyUI that needs no GPU.
//!
//! Same routes, same shapes, same races as the real one, real files out, and faults on request.
//! [`Simulator`] runs one on a port of your choice; everything a test wants to know or break is
//! behind its handle, and behind `/sim/*` for other processes.

pub mod config;
mod engine;
pub mod faults;
mod host;
mod http;
mod hub;
pub mod json;
pub mod media;
mod nodes;
mod simulator;
pub mod stats;
mod supervisor;
mod wire;

pub use config::{Profile, SimConfig};
pub use simulator::{Simulator, StartError};
pub use supervisor::Condition;
