//! Real programs as processes of a test.

mod lines;
mod program;

pub use program::{Error, Program};
