//! Python's ways of failing: exceptions with the tracebacks that clients get to see.

use crate::json::{Json, list};

/// Where the simulated ComfyUI pretends to be installed.
const HOME: &str = "/srv/ComfyUI";

/// An exception on its way up.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Exception {
    /// The type with its module, as `exception_type` shows it.
    pub(crate) kind: String,
    /// What `str()` of it gives.
    pub(crate) message: String,
    /// Where it was raised: the innermost frames, outermost first.
    pub(crate) frames: Vec<Frame>,
}

/// One line of a traceback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    file: String,
    line: u32,
    function: String,
}

impl Frame {
    /// A frame in a file of ComfyUI itself.
    pub(crate) fn comfy(file: &str, line: u32, function: &str) -> Frame {
        Frame::at(format!("{HOME}/{file}"), line, function)
    }

    /// A frame anywhere.
    pub(crate) fn at(file: impl Into<String>, line: u32, function: &str) -> Frame {
        Frame { file: file.into(), line, function: function.to_owned() }
    }

    /// Whether it is in a function of that name.
    pub(crate) fn is_in(&self, function: &str) -> bool {
        self.function == function
    }
}

impl Exception {
    /// An exception raised in one place.
    pub(crate) fn new(kind: &str, message: impl Into<String>) -> Exception {
        Exception { kind: kind.to_owned(), message: message.into(), frames: Vec::new() }
    }

    /// The same with the frames in which it was raised.
    pub(crate) fn raised_in(mut self, frames: impl IntoIterator<Item = Frame>) -> Exception {
        self.frames = frames.into_iter().collect();
        self
    }

    /// The traceback below the frames of the caller. The source text is left out, it is not ours.
    pub(crate) fn traceback(&self, above: &[Frame]) -> Json {
        list(above.iter().chain(&self.frames).map(|frame| {
            format!("  File \"{}\", line {}, in {}\n    ...\n", frame.file, frame.line, frame.function)
        }))
    }
}
