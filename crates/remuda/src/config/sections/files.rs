//! `[files]`: where outputs and uploads are kept.

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Flag, Program, Setting, Shape, flag};
use crate::config::sources::Strings;
use remuda_files::Location;

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
    /// Which place: `REMUDA_FILES`, `file:DATA/files`. For a bucket it has the `AWS_…` variables in it.
    pub(crate) url: Location,
}

impl Files {
    pub(in crate::config) fn read(from: &Resolved, env: &dyn Strings) -> Result<Self, ConfigError> {
        let url: Location = from.get(&URL)?;
        let names = env.names().into_iter().filter(|name| name.starts_with("AWS_"));
        let given = names.filter_map(|name| env.get(&name).ok().flatten().map(|value| (name, value)));
        Ok(Self { url: url.with_settings(given) })
    }
}
