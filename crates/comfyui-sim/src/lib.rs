//! A ComfyUI that needs no GPU.
#![doc = include_str!("../README.md")]

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
