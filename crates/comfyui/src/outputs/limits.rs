//! How much a prompt may leave.

use std::fmt;

use super::OutputFile;

/// How much a prompt may leave before its results are not believed.
///
/// ```
/// use comfyui::outputs::{Limits, Outputs};
/// use serde_json::value::RawValue;
///
/// let raw = RawValue::from_string(r#"{"9": {"images": [{"filename": "a.png"}, {"filename": "b.png"}]}}"#.to_owned())?;
/// let limits = Limits { files: 1, ..Limits::default() };
/// let error = Outputs::from_history_within(&raw, &limits).unwrap_err();
/// assert_eq!(error.to_string(), "the prompt left more than 1 files");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Files.
    pub files: usize,
    /// Results of all kinds: files, texts and data.
    pub outputs: usize,
    /// Bytes in the id of a node, a key, or the name or folder of a file.
    pub name_length: usize,
}

impl Limits {
    /// No bounds at all.
    pub const NONE: Self = Self { files: usize::MAX, outputs: usize::MAX, name_length: usize::MAX };
}

/// Far more than a long video in single frames.
impl Default for Limits {
    fn default() -> Self {
        Self { files: 20_000, outputs: 100_000, name_length: 1_024 }
    }
}

/// Which of the [`Limits`] is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// [`Limits::files`]
    Files,
    /// [`Limits::outputs`]
    Outputs,
    /// [`Limits::name_length`]
    NameLength,
}

/// A prompt left more than it may.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooMany {
    /// Which limit is exceeded.
    pub limit: Limit,
    /// That limit.
    pub most: usize,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.most;
        match self.limit {
            Limit::Files => write!(f, "the prompt left more than {most} files"),
            Limit::Outputs => write!(f, "the prompt left more than {most} results"),
            Limit::NameLength => write!(f, "the prompt left a result whose name is longer than {most} bytes"),
        }
    }
}

impl std::error::Error for TooMany {}

/// What may still come.
pub(super) struct Room<'l> {
    limits: &'l Limits,
    files: usize,
    outputs: usize,
}

impl<'l> Room<'l> {
    pub(super) fn new(limits: &'l Limits) -> Self {
        Self { limits, files: 0, outputs: 0 }
    }

    pub(super) fn name(&self, name: &str) -> Result<(), TooMany> {
        within(Limit::NameLength, name.len(), self.limits.name_length)
    }

    pub(super) fn output(&mut self) -> Result<(), TooMany> {
        self.outputs += 1;
        within(Limit::Outputs, self.outputs, self.limits.outputs)
    }

    pub(super) fn file(&mut self, file: &OutputFile) -> Result<(), TooMany> {
        self.files += 1;
        within(Limit::Files, self.files, self.limits.files)?;
        self.name(&file.filename)?;
        self.name(&file.subfolder)
    }
}

fn within(limit: Limit, found: usize, most: usize) -> Result<(), TooMany> {
    if found > most { Err(TooMany { limit, most }) } else { Ok(()) }
}
