//! Recordings of what the official SDK says, and comparing what a worker says with them.
//!
//! A recording and a journal both become a [`Transcript`]: what was said, without times, ports, tokens and the order of
//! things that have none. [`compare()`] tells where two of them differ.

mod compare;
mod file;
mod json;
mod lines;
mod vary;

pub use compare::{Difference, compare};
pub use file::{Recorded, Recording};
pub use json::to_json;
pub use lines::{Lane, Line, Transcript};
