//! What the checks look at: the files of the repository and the packages of the workspace.

use super::workspace::Workspace;
use crate::run;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// Everything a check may look at, read once.
pub(super) struct Repository {
    pub(super) workspace: Workspace,
    pub(super) files: Vec<File>,
}

/// One file that is in the repository or would be added by `git add .`.
pub(super) struct File {
    /// From the root, with `/` between the parts.
    pub(super) path: String,
    /// Its text; `None` for a binary file.
    pub(super) text: Option<String>,
}

impl Repository {
    pub(super) fn load() -> Result<Self> {
        Ok(Self { workspace: Workspace::load()?, files: files()? })
    }

    /// The text files whose name ends in one of these.
    pub(super) fn with_ending<'a>(
        &'a self,
        endings: &'a [&str],
    ) -> impl Iterator<Item = (&'a File, &'a str)> {
        self.texts().filter(|(file, _)| endings.iter().any(|ending| file.path.ends_with(ending)))
    }

    /// All text files.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&File, &str)> {
        self.files.iter().filter_map(|file| Some((file, file.text.as_deref()?)))
    }
}

impl File {
    #[cfg(test)]
    pub(super) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: Some(text.to_owned()) }
    }

    /// Whether one of the folders it lies in has this name.
    pub(super) fn is_below(&self, folder: &str) -> bool {
        let mut parts = self.path.split('/');
        parts.next_back();
        parts.any(|part| part == folder)
    }
}

fn files() -> Result<Vec<File>> {
    // New files count before they are added: the check should fail before the commit, not after it.
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    // A clone made by another user, as containers have it, is not trusted by git unless told so; listing is harmless.
    let trust = format!("safe.directory={}", run::root().display());
    let mut git = Command::new("git");
    let listed = run::captured(git.current_dir(run::root()).args(["-c", &trust]).args(list))?;
    let listed = String::from_utf8(listed).context("a file name in the repository is not UTF-8")?;
    let mut paths: Vec<&str> = listed.split_terminator('\0').collect();
    paths.sort_unstable();
    paths.dedup();
    paths.into_iter().filter_map(|path| read(path).transpose()).collect()
}

fn read(path: &str) -> Result<Option<File>> {
    let full: &Path = &run::root().join(path);
    // Removed but not yet committed, or a link to somewhere else.
    if !full.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return Ok(None);
    }
    let bytes = std::fs::read(full).with_context(|| format!("cannot read {path}"))?;
    Ok(Some(File { path: path.to_owned(), text: String::from_utf8(bytes).ok() }))
}
