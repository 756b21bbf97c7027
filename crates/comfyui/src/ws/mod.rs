//! The websocket: what is said on it, and one connection that is always read.

mod binary;
mod connection;
mod message;
mod pace;

pub use binary::{ImageFormat, Preview, PreviewSource, TextFrame, decode_binary};
pub(crate) use connection::{Connection, ConnectionEvent, ROOM, RawFrame, Timing};
pub use message::{
    DecodeError, Executed, Executing, ExecutionCached, ExecutionError, ExecutionInterrupted, ExecutionStart,
    ExecutionSuccess, Message, NodeProgress, Progress, ProgressState, Status, decode_text,
};
