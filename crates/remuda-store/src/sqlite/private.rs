//! The files of a store are for the user who runs it, and for nobody else.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use super::lock::beside;

/// Opens or makes a file that only this user can read, whatever the umask says.
pub(super) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    options
}

/// Makes the file of a store before SQLite does, so that there is no moment in which others could open it, and takes
/// the access of others away from what an earlier release left. SQLite gives its log the mode of the file.
pub(super) fn store(path: &Path) -> io::Result<()> {
    drop(options().open(path)?);
    for ending in ["", "-wal", "-shm", ".lock"] {
        close(&beside(path, ending))?;
    }
    Ok(())
}

#[cfg(unix)]
fn close(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => found.permissions().mode(),
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if found & 0o077 == 0 {
        return Ok(());
    }
    match std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)) {
        Ok(()) => {
            tracing::info!(path = %path.display(), mode.before = format!("{:o}", found & 0o777), "other users could open this file; now only this one can");
        }
        // Another user's file, or a file system without modes: it is usable, and whoever set it up must know.
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "other users can open this file, and its mode cannot be changed");
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn close(_: &Path) -> io::Result<()> {
    Ok(())
}
