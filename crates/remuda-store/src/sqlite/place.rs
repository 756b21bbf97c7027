//! Whether the file is still where it was opened.
//!
//! A file that was removed or replaced can be written on and on, into nowhere. That must not look like success.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A file that is open.
#[derive(Debug, Clone)]
pub(super) struct Place {
    path: PathBuf,
    identity: Identity,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity(u64, u64);

impl Place {
    pub(super) fn of(path: &Path) -> Result<Self> {
        let identity = identity(path).map_err(|error| gone(path, Some(error)))?;
        Ok(Self { path: path.to_owned(), identity })
    }

    /// Refuses to go on when another file, or none, is there.
    pub(super) fn check(&self) -> Result<()> {
        match identity(&self.path) {
            Ok(identity) if identity == self.identity => Ok(()),
            Ok(_) => Err(gone(&self.path, None)),
            Err(error) => Err(gone(&self.path, Some(error))),
        }
    }
}

fn gone(path: &Path, error: Option<std::io::Error>) -> Error {
    let why = error.as_ref().map_or_else(|| "another file is there".to_owned(), ToString::to_string);
    Error::Unavailable {
        message: format!("{} is not the file any more that was opened ({why})", path.display()),
        source: error.map(Into::into),
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> std::io::Result<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).map(|found| Identity(found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> std::io::Result<Identity> {
    // An open file cannot be removed there.
    std::fs::metadata(path).map(|_| Identity(0, 0))
}
