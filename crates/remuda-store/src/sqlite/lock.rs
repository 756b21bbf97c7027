//! One process owns a file.
//!
//! SQLite itself would let several processes in. Ours keeps claims and leases in memory, so a second one must not
//! even open the store. The lock is the operating system's: it goes when its holder does, however that happens.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use super::private;
use crate::{Clock as _, Error, Result, SystemClock};

/// Held as long as the file is used.
#[derive(Debug)]
pub(super) struct FileLock {
    _file: File,
}

impl FileLock {
    /// Takes `<path>.lock`, and writes into it who did.
    pub(super) fn take(path: &Path) -> Result<Self> {
        let place = beside(path, ".lock");
        let failed = |what: &str, error: std::io::Error| Error::Unavailable {
            message: format!("could not {what} {}: {error}", place.display()),
            source: Some(Box::new(error)),
        };
        let mut file = private::options().open(&place).map_err(|error| failed("open", error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // What cannot be read is not known; that it is locked is.
                let _unknown = file.take(200).read_to_string(&mut holder);
                let holder = holder.trim();
                return Err(Error::InUse {
                    path: path.display().to_string(),
                    holder: if holder.is_empty() { "which one is not known" } else { holder }.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", error)),
        }
        let note = format!("process {}, started {}\n", std::process::id(), SystemClock.now());
        // Only for the message to others: with a full disk the lock itself still holds.
        let _not_essential =
            file.rewind().and_then(|()| file.set_len(0)).and_then(|()| file.write_all(note.as_bytes()));
        Ok(Self { _file: file })
    }
}

/// The file beside `path` with this ending.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(ending);
    PathBuf::from(name)
}
