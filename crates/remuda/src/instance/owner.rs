//! Who this process is: an id in its data directory, held under a lock.
//!
//! A restarted process finds its leases by it, so two processes must never have the same one.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use remuda_core::OwnerId;
use uuid::Uuid;

use super::private;

/// The id of this process, for as long as the lock on its file is held.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) id: OwnerId,
    /// Held, not read: closing it would let another process in.
    _lock: File,
}

impl Owner {
    /// Takes the id of a data directory, or makes one.
    pub(crate) fn take(data: &Path) -> anyhow::Result<Self> {
        private::data_directory(data).with_context(|| {
            format!("cannot make the data directory {}: choose another with --data", data.display())
        })?;
        let path = data.join("owner");
        let mut file = private::file(&path).with_context(|| {
            format!("cannot write {}: choose another data directory with --data", path.display())
        })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "another Remuda uses the data directory {}: stop it, or give this one its own with --data",
                data.display()
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        let mut text = String::new();
        file.read_to_string(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
        let id = match text.trim() {
            // Also after a crash between making the file and writing it: nothing can be leased to an id never used.
            "" => {
                let id = OwnerId(Uuid::new_v4());
                file.rewind()?;
                writeln!(file, "{id}")
                    .and_then(|()| file.sync_all())
                    .with_context(|| format!("cannot write {}", path.display()))?;
                id
            }
            text => text
                .parse()
                .with_context(|| format!("{} does not hold an id; was it edited?", path.display()))?,
        };
        Ok(Self { id, _lock: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_kept_and_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let first = Owner::take(dir.path()).unwrap();
        let refused = Owner::take(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("another Remuda uses the data directory"), "{refused}");
        let id = first.id;
        drop(first);
        assert_eq!(Owner::take(dir.path()).unwrap().id, id);
    }
}
