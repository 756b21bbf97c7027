//! `[files]`: where outputs and uploads are kept.

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Flag, Program, Setting, Shape, flag};
use crate::config::values::FilesUrl;

static URL: Setting = Setting {
    name: "files.url",
    env: &["REMUDA_FILES"],
    flags: &[
        flag("files", "PLACE", Program::RUNNING),
        Flag { prefix: "file:", ..flag("output-dir", "DIR", Program::RUNNING) },
    ],
    default: "file:{data}/files",
    shape: Shape::Files,
    help: "Place for outputs and uploads: file:DIR, or s3://BUCKET/PREFIX",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[&URL];

/// Where outputs and uploads are kept.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    /// Which place: `REMUDA_FILES`, `file:DATA/files`.
    pub(crate) url: FilesUrl,
}

impl Files {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        Ok(Self { url: from.get(&URL)? })
    }
}
